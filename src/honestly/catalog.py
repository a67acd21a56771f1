"""One registry and one grammar for rules, mixers and attacks, on every command line and in every settings file.

    krum:f=2                      a name, a colon, and settings separated by commas
    nnm:f=4+multi_krum:f=4,keep=8 mixers joined by +, the rule last
    mine.py:Rule:f=2              your own code, see `honestly.own`

Older spellings stay readable, because files and scripts hold them: settings separated by colons (`rop:z=1:angle=45`).
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import Any, Generic, TypeVar

from honestly.hints import did_you_mean, unknown
from honestly.own import import_name, is_own

T = TypeVar("T")

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
        colons = (found.start() for found in re.finditer(":", text))
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


class Catalog(Mapping[str, type[T]], Generic[T]):
    """Everything of one kind by name: what exists, what it can be told, and how it is made from a word.

    Args:
        kind: what messages call it: "rule", "mixer" or "attack".
        base: the class that all inherit from.
        entries: dataclasses with a `name`.
        read: for settings of certain types, the function that makes them of a plain value: `{"Memory | None": ...}`.
        python: how a Python programmer reaches the classes, "hn." for those that the package exports.
    """

    def __init__(
        self,
        kind: str,
        base: type[T],
        entries: Iterable[type[T]],
        *,
        read: Mapping[str, Callable[[Any], Any]] | None = None,
        python: str = "",
    ) -> None:
        self.kind, self.base = kind, base
        self._read, self._python = dict(read or {}), python
        self._entries: dict[str, type[T]] = {}
        for entry in entries:
            self.register(entry)

    def __getitem__(self, name: str) -> type[T]:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def register(self, entry: type[T]) -> type[T]:
        """Add a class; it can be used as a decorator. Raises ValueError if its name is taken."""
        self._check(entry, getattr(entry, "__name__", repr(entry)))
        name = str(entry.name)  # type: ignore[attr-defined]
        if self._entries.get(name, entry) is not entry:
            raise ValueError(f"there is a {self.kind} {name!r} already: {self._entries[name].__qualname__}")
        self._entries[name] = entry
        return entry

    def find(self, name: str, *, own: bool = False) -> type[T]:
        """The class of that name; with `own`, also code of the user's, which is run by that."""
        if name in self._entries:
            return self._entries[name]
        known, _, rest = name.partition(":")
        if known in self._entries:
            raise ValueError(f"{rest!r} in {name!r}: write settings as {known}:key=value")
        if not own or not is_own(name):
            more = f", or file.py:Class of your own{'' if own else ' on a command line or in a settings file'}"
            raise ValueError(unknown(self.kind, name, self._entries, more if own or is_own(name) else ""))
        entry = import_name(self.kind, name)
        self._check(entry, name)
        return entry

    def settings(self, entry: type[T]) -> dict[str, Any]:
        """The settings of a class and their defaults; those that must be given have none: `dataclasses.MISSING`."""
        return {
            one.name: one.default if one.default_factory is MISSING else one.default_factory()
            for one in _fields(entry)
            if one.init
        }

    def make(self, name: str, **settings: Any) -> T:
        """The thing of that name. Raises ValueError, with what was probably meant, for what does not exist."""
        return self._construct(self.find(name), name, settings)

    def build(self, spec: Spec | str, *, key: str = "", own: bool = True) -> T:
        """The thing that a word stands for; `key` is what messages call it where that is not its kind."""
        spec = Spec.parse(spec) if isinstance(spec, str) else spec
        entry = self.find(spec.name, own=own)
        return self._construct(entry, spec.name, self.convert(entry, spec.settings, key=key or self.kind))

    def check_settings(self, entry: type[T], name: str, settings: Iterable[str]) -> None:
        """Raise ValueError if the class lacks one of the settings."""
        allowed = list(self.settings(entry))
        for setting in settings:
            if setting not in allowed:
                hint = did_you_mean(setting, allowed, most=3)
                choices = ", ".join(allowed) or "none"
                raise ValueError(
                    f"{self.kind} {name!r} has no setting {setting!r}{': ' + hint if hint else '. '}Settings: {choices}"
                )

    def convert(self, entry: type[T], settings: Mapping[str, Any], *, key: str) -> dict[str, Any]:
        """Settings in the types of the class: 4 becomes 4.0 for a float; text is not accepted as a number."""
        typed = dict(settings)
        for one in _fields(entry):
            if one.name in typed:
                kind = _kind(one)
                read = self._read.get(kind) or self._read.get(one.name)
                where, value = f"{key}.{one.name} = {typed[one.name]!r}", typed[one.name]
                typed[one.name] = _convert(where, value, kind) if read is None else _read(read, where, value)
        return typed

    def _construct(self, entry: type[T], name: str, settings: Mapping[str, Any]) -> T:
        self.check_settings(entry, name, settings)
        missing = [one for one in _fields(entry) if _is_required(one) and one.name not in settings]
        if missing:
            raise ValueError(self._needs(entry, name, missing))
        try:
            return entry(**settings)
        except TypeError as error:  # a class of the user's own that is abstract, or checks its settings in its own way
            if entry in self._entries.values():
                raise
            raise ValueError(f"{self.kind} {name!r} cannot be made: {error}") from error

    def _needs(self, entry: type[T], name: str, missing: list[Field[Any]]) -> str:
        """What is missing, what it means, and how it is given in Python and on a command line."""
        meanings = [f"{one.name}{_meaning(entry, one.name)}" for one in missing]
        example = ", ".join(f"{one.name}={2 if _kind(one).startswith('int') else 1.0}" for one in missing)
        python = f"{self._python if name in self else ''}{entry.__name__}({example})"
        return (
            f"{self.kind} {name!r} needs {' and '.join(meanings)} "
            f"(Python: {python}; command line: {name}:{example.replace(', ', ',')})"
        )

    def _check(self, entry: Any, name: str) -> None:
        if not isinstance(entry, type) or not issubclass(entry, self.base) or not is_dataclass(entry):
            raise ValueError(f"{self.kind} '{name}': must be a dataclass that inherits from {self.base.__name__}")


def _fields(entry: Any) -> tuple[Field[Any], ...]:
    return fields(entry)


def _kind(one: Field[Any]) -> str:
    """A setting's type as text, also in a file without `from __future__ import annotations`."""
    return one.type.__name__ if isinstance(one.type, type) else str(one.type)


def _is_required(one: Field[Any]) -> bool:
    return one.init and one.default is MISSING and one.default_factory is MISSING


def _meaning(entry: type[Any], setting: str) -> str:
    """What the class's documentation says of a setting, up to the first full stop or semicolon."""
    found = re.search(rf"^\s*{setting}: ([^.;\n]+)", inspect.getdoc(entry) or "", re.M)
    return f", {found[1].strip()}" if found else ""


def _read(read: Callable[[Any], Any], where: str, value: Any) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _convert(where: str, value: Any, kind: str) -> Any:
    if kind.startswith(("int", "float")) and not (value is None and "None" in kind):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{where}: give a number")
        if kind.startswith("int") and not float(value).is_integer():
            raise ValueError(f"{where}: give a whole number")
        return int(value) if kind.startswith("int") else float(value)
    if kind == "bool" and not isinstance(value, bool):
        raise ValueError(f"{where}: give true or false")
    return value
