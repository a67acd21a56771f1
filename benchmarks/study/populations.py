"""Which recorded rounds are measured: those of the package, and those of <data>/grams where there are any."""

from __future__ import annotations

import os
from pathlib import Path

from honestly.studies import recordings
from honestly.studies.layers.space import LayeredPopulation
from honestly.studies.recordings import HONEST, Course

#: What was sent under a rule, the last 8 of 20 clients being malicious.
SENT = (*(HONEST,) * 12, *("sent",) * 8)


def folder(choice: Path | None) -> Path | None:
    """The folder of recordings: the given one, or $HONESTLY_DATA/grams; None for those of the package only."""
    if choice is not None:
        return choice
    data = os.environ.get("HONESTLY_DATA")
    path = Path(data) / "grams" if data else None
    return path if path is not None and path.is_dir() else None


def courses(where: Path | None) -> list[Course]:
    """Every course with honest updates of all clients."""
    paths = [recordings.shipped_recording()] if where is None else sorted(where.glob("*.npz"))
    return [course for path in paths if "runs" not in path.stem for course in recordings.read(path)]


def sent(where: Path | None) -> list[Course]:
    """Every course of what clients sent, attackers among them."""
    return [c for path in sorted(where.glob("*runs*.npz")) for c in recordings.read(path, rows=SENT)] if where else []


def family(name: str) -> str:
    """The data set and, where it matters, how unequal the clients' data are."""
    first, *rest = name.split(" ")[0].split("-")
    if first == "digits":
        return "-".join([first, *rest[:1]])
    return f"{first}-a0.1" if "a0.1" in rest else first


def spaced(course: Course, n: int) -> list[int]:
    """n of the rounds: the first, the last, and some in between."""
    rounds = sorted(course.rounds)
    if n >= len(rounds):
        return rounds
    return [rounds[round(i * (len(rounds) - 1) / max(n - 1, 1))] for i in range(n)]


def chosen(where: Path | None, *, rounds: int, only: str = "", clients: int | None = None) -> list[LayeredPopulation]:
    """Some rounds of every course whose name holds the text."""
    return [
        LayeredPopulation.of(course, r, clients=clients)
        for course in courses(where)
        if only in course.name
        for r in spaced(course, rounds)
    ]
