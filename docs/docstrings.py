"""Docstrings of this package as Markdown."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

LISTS = {"Args": "Arguments", "Attributes": "Attributes", "Raises": "Raises"}


def documented(name: str, thing: Any, *, level: int = 2) -> str:
    """A heading, the signature, the docstring and the public methods of a class or function."""
    about = markdown(inspect.getdoc(thing) or "")
    head = f"{'#' * level} `{name}`\n\n```python\n{_signature(name, thing)}\n```\n\n{about}\n"
    if not inspect.isclass(thing):
        return head
    return head + "".join(f"\n{part}" for part in _members(thing, level + 1))


def markdown(docstring: str) -> str:
    """The docstring with its sections as lists, its examples as code."""
    return "\n".join(_lines(re.sub(r"``(.+?)``", r"`\1`", docstring).splitlines()))


def _lines(lines: list[str]) -> Iterator[str]:
    """Sections become headings and lists; `>>>` becomes a code block; the rest is Markdown already."""
    at = 0
    while at < len(lines):
        line = lines[at]
        title = re.fullmatch(r"(\w+):", line)
        if title and title[1] in {*LISTS, "Returns", "Example", "Examples"}:
            end = _end(lines, at + 1, lambda one: not one or one.startswith(" "))
            body = textwrap.dedent("\n".join(lines[at + 1 : end])).strip("\n")
            yield from _section(title[1], body)
            at = end
        elif line.startswith(">>> "):
            end = _end(lines, at, bool)
            yield from ("", "```pycon", *lines[at:end], "```", "")
            at = end
        else:
            yield re.sub(r"^(References?):", r"*\1:*", line)
            at += 1


def _end(lines: list[str], start: int, inside: Callable[[str], bool]) -> int:
    while start < len(lines) and inside(lines[start]):
        start += 1
    return start


def _section(title: str, body: str) -> Iterator[str]:
    if title.startswith("Example"):
        yield from ("", "```pycon", body, "```", "")
    elif title == "Returns":
        yield from ("", f"**Returns**: {body}", "")
    else:
        yield from ("", f"**{LISTS[title]}**", "")
        for entry in re.split(r"\n(?=\S)", body):
            names, _, text = entry.partition(":")
            code = ", ".join(f"`{name.strip()}`" for name in names.split(","))
            yield f"- {code}: {' '.join(text.split())}"
        yield ""


def _signature(name: str, thing: Any) -> str:
    """As one would write it, one argument a line if it is long."""
    if inspect.isclass(thing) and (issubclass(thing, Enum | BaseException) or not _own_arguments(thing)):
        return f"class {name}"
    signature = inspect.signature(thing)
    parts, star = [], False
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
        parts.append(_argument(parameter))
    tail = (
        ""
        if inspect.isclass(thing) or not signature.return_annotation
        else f" -> {_plain(signature.return_annotation)}"
    )
    one_line = f"{name}({', '.join(parts)}){tail}"
    if len(one_line) <= 100:
        return one_line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){tail}"


def _own_arguments(thing: type) -> bool:
    return dataclasses.is_dataclass(thing) or "__init__" in vars(thing)


def _argument(parameter: inspect.Parameter) -> str:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    empty = inspect.Parameter.empty
    typed = "" if parameter.annotation is empty else f": {_plain(parameter.annotation)}"
    default = parameter.default
    if default is empty:
        return f"{stars}{parameter.name}{typed}"
    text = "..." if "factory" in repr(default) else repr(default)
    return f"{parameter.name}{typed}{' = ' if typed else '='}{text}"


def _plain(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    return re.sub(r"\b(?:typing|collections\.abc|numpy|npt|honestly(?:\.\w+)*)\.", "", text)


def _members(thing: type, level: int) -> Iterator[str]:
    for name, member in vars(thing).items():
        if name.startswith("_") or not getattr(member, "__doc__", None):
            continue
        if isinstance(member, property):
            yield f"{'#' * level} `{name}`\n\n{markdown(inspect.getdoc(member) or '')}\n"
        elif inspect.isfunction(member) or isinstance(member, classmethod | staticmethod):
            inherited = any(hasattr(base, name) for base in thing.__mro__[1:])
            if not inherited:
                yield documented(name, getattr(thing, name), level=level)
