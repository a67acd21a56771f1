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
