"""Make untrusted text safe for a terminal, a log and a file."""

from __future__ import annotations


def printable(text: object) -> str:
    """Text that a terminal, a page and a UTF-8 file can take: what cannot be printed is written as its code.

    >>> printable("a\\x1b[2J")
    'a\\\\x1b[2J'
    """
    plain = str(text)
    if plain.isascii() and plain.isprintable():
        return plain  # nearly all of it
    cleaned = plain.encode("utf-8", "backslashreplace").decode()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cleaned)


def brief_repr(value: object) -> str:
    """The `repr` of any object, of at most 60 characters, for a message.

    >>> brief_repr("a" * 100)
    "'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa..."
    """
    try:
        text = repr(value)
    except Exception:  # an integer with more digits than Python prints, or a foreign object
        text = f"an unprintable {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
