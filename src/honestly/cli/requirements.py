"""The requirements of the package and its extras, and which of them are installed, found without importing them.

Versions and requirements are parsed here and not by `packaging`, because this must work with nothing but NumPy
installed. It reads only the metadata of this package, which has `>=` and `<` and no pre-releases.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True)
class Requirement:
    """A distribution that the core (extra "") or an extra needs, and the installed version."""

    name: str
    bounds: str
    extra: str
    installed: str | None

    @property
    def problem(self) -> str | None:
        """Why the installed version does not suffice; None if it does or if none is installed."""
        if self.installed is None or satisfies(self.installed, self.bounds):
            return None
        return f"{self.name} {self.installed} is installed, but {self.name}{self.bounds} is needed"


def requirements() -> list[Requirement]:
    """The requirements of the installed package, or of the source tree that it is run from."""
    try:
        lines = metadata.requires("honestly") or []
    except metadata.PackageNotFoundError:
        lines = _of_the_source_tree()
    return [_parse(line) for line in lines]


def pip_line(extra: str) -> str:
    """The command that installs an extra; "" is the package itself.

    >>> pip_line("sim")
    "pip install 'honestly[sim]'"
    """
    return f"pip install 'honestly[{extra}]'" if extra else "pip install honestly"


def satisfies(version: str, bounds: str) -> bool:
    """Whether a version lies within bounds such as ``>=13,<15``; the comparison ends at a part that is not a number.

    >>> satisfies("2.13.0+cpu", ">=2.6"), satisfies("15.0", "<15,>=13"), satisfies("1.9", ">=1.10")
    (True, False, False)
    """
    have = _numbers(version)
    for sign, bound in re.findall(r"(>=|<)\s*([\w.]+)", bounds):
        want = _numbers(bound)
        if (have < want) == (sign == ">="):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    parts = [int(part) for part in match[0].split(".")] if match else []
    while parts and parts[-1] == 0:  # 15.0 is 15
        parts.pop()
    return tuple(parts)


def _parse(line: str) -> Requirement:
    name = re.match(r"[\w.-]+", line)
    extra = re.search(r"extra\s*==\s*['\"]([\w.-]+)['\"]", line)
    bounds = re.search(r"[<>=][^;]*", line.partition(";")[0])
    package = name[0] if name else line
    try:
        installed = metadata.version(package)
    except metadata.PackageNotFoundError:
        installed = None
    return Requirement(package, bounds[0].strip() if bounds else "", extra[1] if extra else "", installed)


def _of_the_source_tree() -> list[str]:
    """As the package's metadata would say it; an extra may name others of ours, as in `honestly[cli,torch]`."""
    file = Path(__file__).parents[3] / "pyproject.toml"
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"] if file.is_file() else {}
    extras: dict[str, list[str]] = project.get("optional-dependencies", {})

    def flat(extra: str) -> list[str]:
        names: list[str] = []
        for line in extras[extra]:
            ours = re.match(r"honestly\[(.*)\]", line)
            names += [inner for name in ours[1].split(",") for inner in flat(name.strip())] if ours else [line]
        return names

    listed = [f"{line}; extra == '{extra}'" for extra in extras for line in flat(extra)]
    return [*project.get("dependencies", []), *dict.fromkeys(listed)]
