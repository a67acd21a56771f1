"""Suggestions for unknown words."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(word: object, words: Iterable[object], *, most: int = 1, cutoff: float = 0.6) -> str:
    """A question for the middle of a message, or nothing if no word is close; capitals do not count.

    >>> did_you_mean("KURM", ["krum", "mean"]), did_you_mean("x", ["krum"])
    ('did you mean krum? ', '')
    """
    small = {str(one).lower(): str(one) for one in words}
    close = [small[one] for one in get_close_matches(str(word).lower(), list(small), n=most, cutoff=cutoff)]
    return f"did you mean {' or '.join(close)}? " if close else ""


def unknown(what: str, name: object, allowed: Iterable[object], more: str = "") -> str:
    """The whole message: what is unknown, what was probably meant, and what is allowed.

    >>> unknown("attack", "sign_flop", ["none", "sign_flip"])
    "unknown attack 'sign_flop': did you mean sign_flip? Allowed: none, sign_flip"
    >>> unknown("attack", "x", ["none", "none"])  # of two lists that both have it
    "unknown attack 'x'. Allowed: none"
    """
    words = list(dict.fromkeys(map(str, allowed)))
    hint = did_you_mean(name, words, most=3)
    return f"unknown {what} '{name}'{': ' + hint if hint else '. '}Allowed: {', '.join(words) or 'none'}{more}"
