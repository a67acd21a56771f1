"""One registry for each kind of thing: rules, mixers and attacks by name."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Any, Generic, TypeVar

from honestly.catalog.words import Spec
from honestly.hints import did_you_mean, unknown
from honestly.own import import_name, is_own

T = TypeVar("T")


class SettingsError(ValueError, TypeError):
    """Settings that a rule, mixer or attack lacks or does not have.

    It is a TypeError, as for any call with wrong arguments, and a ValueError, as for a wrong word on a command line.
    """


class Catalog(Mapping[str, type[T]], Generic[T]):
    """Everything of one kind by name: what exists, which settings it has, and how it is made from a word.

    Args:
        kind: what messages call it: "rule", "mixer" or "attack".
        base: the class that all inherit from.
        entries: dataclasses with a `name`.
        read: for settings of certain types, the function that makes them of a plain value: `{"Memory | None": ...}`.
        python: how a Python programmer reaches the classes, "hn." for those that the package exports.
        instead: names of another kind that are easily confused with this one, and what to write instead.
        aliases: names that things have in papers and other libraries, in small letters, and the name here. Messages
            say it; only the name here is accepted.
    """

    def __init__(
        self,
        kind: str,
        base: type[T],
        entries: Iterable[type[T]],
        *,
        read: Mapping[str, Callable[[Any], Any]] | None = None,
        python: str = "",
        instead: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.kind, self.base, self._instead, self._aliases = kind, base, dict(instead or {}), dict(aliases or {})
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
        if "__init__" in vars(entry) and name not in self._entries:
            entry.__init__ = self._explained(entry.__init__)
        self._entries[name] = entry
        return entry

    def find(self, name: str, *, own: bool = False) -> type[T]:
        """The class of that name; with `own`, also code of the user's, which is run by that."""
        if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without types
            raise ValueError(f"{self.kind} {name!r}: give its name, such as {next(iter(self._entries), 'a word')!r}")
        if name in self._entries:
            return self._entries[name]
        known, _, rest = name.partition(":")
        if known in self._entries:
            raise ValueError(f"{rest!r} in {name!r}: write settings as {known}:key=value")
        if known in self._instead:
            raise ValueError(f"{known!r} is not a {self.kind}: {self._instead[known]}")
        if known.lower() in self._aliases:
            raise ValueError(f"unknown {self.kind} {known!r}: it is called {self._aliases[known.lower()]} here")
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
        """Raise SettingsError if the class lacks one of the settings."""
        allowed = [one.name for one in _fields(entry) if one.init]
        for setting in settings:
            if setting not in allowed:
                hint = did_you_mean(setting, allowed, most=3)
                choices = ", ".join(allowed) or "none"
                raise SettingsError(
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
        self._check_call(entry, name, settings)
        try:
            return entry(**settings)
        except TypeError as error:  # a class of the user's own that is abstract, or checks its settings in its own way
            if entry in self._entries.values():
                raise
            raise ValueError(f"{self.kind} {name!r} cannot be created: {error}") from error

    def _explained(self, init: Callable[..., None]) -> Callable[..., None]:
        """An `__init__` that explains wrong settings in our words; help() still shows the signature of the old one."""

        @wraps(init)
        def explained(thing: Any, *args: Any, **settings: Any) -> None:
            try:
                return init(thing, *args, **settings)
            except TypeError as error:
                refusal = error
            self._check_call(type(thing), str(thing.name), settings, args)
            raise refusal

        return explained

    def _check_call(self, entry: type[T], name: str, settings: Mapping[str, Any], args: tuple[Any, ...] = ()) -> None:
        """Raise SettingsError, naming the remedy, if the class cannot be called with these settings."""
        self.check_settings(entry, name, settings)
        known = [one for one in _fields(entry) if one.init]
        missing = [one for one in known if _is_required(one) and one.name not in settings]
        if args and all(one.kw_only for one in known):
            problem = "takes its settings by name" if known else "has no settings"
        elif missing and not args:
            problem = f"needs {' and '.join(f'{one.name}{_meaning(entry, one.name)}' for one in missing)}"
        else:
            return
        example = ", ".join(f"{one.name}={_example(one)}" for one in missing or known[: len(args)])
        python = f"{self._python if name in self else ''}{entry.__name__}({example})"
        word = f"{name}:{example.replace(', ', ',')}" if example else name
        raise SettingsError(f"{self.kind} {name!r} {problem} (Python: {python}; command line: {word})")

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


def _example(one: Field[Any]) -> Any:
    """A value for a message: the default, or a small number."""
    return (2 if _kind(one).startswith("int") else 1.0) if _is_required(one) else one.default


def _meaning(entry: type[Any], setting: str) -> str:
    """What the class's documentation says of a setting, up to the first full stop or semicolon."""
    match = re.search(rf"^\s*{setting}: ([^.;\n]+)", inspect.getdoc(entry) or "", re.M)
    return f", {match[1].strip()}" if match else ""


def _read(read: Callable[[Any], Any], where: str, value: Any) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _convert(where: str, value: Any, kind: str) -> Any:
    if kind.startswith(("int", "float")) and not (value is None and "None" in kind):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{where}: give a number")
        if kind.startswith("int"):
            if isinstance(value, float) and not value.is_integer():
                raise ValueError(f"{where}: give a whole number")
            return int(value)
        try:
            return float(value)
        except OverflowError:
            raise ValueError(f"{where}: give a number below {sys.float_info.max:.1g}") from None
    if kind == "bool" and not isinstance(value, bool):
        raise ValueError(f"{where}: give true or false")
    return value
