"""One grammar for rules, mixers and attacks, on every command line and in every settings file.

    krum:f=2                      a name, a colon, and settings separated by commas
    nnm:f=4+multi_krum:f=4,keep=8 mixers joined by +, the rule last
    mine.py:Rule:f=2              your own code, see `honestly.own`

Older spellings stay readable, because files and scripts hold them: settings separated by colons (`rop:z=1:angle=45`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_BRACKETS = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}
_SETTING = re.compile(r"\s*[A-Za-z_]\w*\s*=")


@dataclass(frozen=True)
class Spec:
    """A name and its settings, as a person wrote them.

    >>> str(Spec.parse("multi_krum:f=4,keep=8")), Spec.parse("mine.py:Rule:f=4").name
    ('multi_krum:f=4,keep=8', 'mine.py:Rule')
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def parse(cls, text: str) -> Spec:
        """One rule, mixer or attack from its word. The name ends at the first colon that a setting follows."""
        colons = (match.start() for match in re.finditer(":", text))
        end = next((at for at in colons if _SETTING.match(text, at + 1)), len(text))
        settings: dict[str, Any] = {}
        for setting in _split(text[end + 1 :], ",:"):
            key, equals, value = setting.partition("=")
            if not equals or not key.strip():
                raise ValueError(f"{setting!r} in {text!r}: write settings as name:key=value,key=value")
            if key.strip() in settings:
                raise ValueError(f"{key.strip()} is given twice in {text!r}")
            settings[key.strip()] = value_of(value.strip())
        if not text[:end].strip():
            raise ValueError(f"{text!r} has no name: write name:key=value")
        return cls(text[:end].strip(), settings)

    @classmethod
    def parse_all(cls, text: str) -> tuple[Spec, ...]:
        """Mixers and then a rule, joined by +.

        >>> [spec.name for spec in Spec.parse_all("nnm:f=4+krum:f=4")], len(Spec.parse_all("scaling:gamma=1e+3"))
        (['nnm', 'krum'], 1)
        """
        parts: list[str] = []
        unfinished = ""
        for piece in re.split(r"\+(?!\d)", text):  # 1e+3 is a number
            unfinished += piece
            if ":" not in piece and re.search(r"[/\\]", piece):  # a folder whose name has a plus, up to its file
                unfinished += "+"
                continue
            parts.append(unfinished)
            unfinished = ""
        return tuple(cls.parse(part) for part in (*parts, *([unfinished[:-1]] if unfinished else [])))

    def __str__(self) -> str:
        return self.name + ":" * bool(self.settings) + ",".join(f"{k}={v}" for k, v in self.settings.items())


def split_words(text: str) -> list[str]:
    """The words of a list with commas; a comma before `key=value` separates settings, not words.

    >>> split_words("multi_krum:f=4,keep=8,median")
    ['multi_krum:f=4,keep=8', 'median']
    """
    words: list[str] = []
    for piece in _split(text, ","):
        if words and ":" in words[-1] and _SETTING.match(piece):
            words[-1] += f",{piece}"
        else:
            words.append(piece)
    return words


def value_of(text: str) -> Any:
    """A setting's value: true, false, none, a number, a list, else the text itself.

    >>> [value_of(text) for text in ("2", "0.5", "true", "none", "[1, 2]", "inf", "trusted")]
    [2, 0.5, True, None, [1, 2], inf, 'trusted']
    """
    constants = {"true": True, "false": False, "none": None}
    if text.lower() in constants:
        return constants[text.lower()]
    for read in (ast.literal_eval, float):
        try:
            return read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass
    return text


def _split(text: str, separators: str) -> list[str]:
    """The pieces between separators that stand outside brackets; empty ones are left out."""
    pieces, depth = [""], 0
    for letter in text:
        depth += _BRACKETS.get(letter, 0)
        if letter in separators and depth <= 0:
            pieces.append("")
        else:
            pieces[-1] += letter
    return [piece for piece in pieces if piece.strip()]
