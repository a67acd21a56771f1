"""What the page draws of its runs: the components of the written pages, drawn here and put in place by the browser."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from honestly.show import svg
from honestly.show.chart import Chart, Line
from honestly.show.live.ledger import Ledger

MEASURES = {"accuracy": "accuracy", "asr": "attack success rate"}
HEIGHT = 190
#: Drawings that are cached until their runs change, because several tabs ask for the same ones.
MOST_CACHED = 64


@dataclass(frozen=True)
class DrawnRun:
    """A run to draw: `rounds` as in `honestly.show.live.rounds`, `end` the number of rounds in the end if known."""

    id: str
    name: str
    rounds: Sequence[dict[str, Any]]
    end: int

    def points(self, key: str) -> tuple[list[int], list[float]]:
        """The rounds in which a number was measured, and the number."""
        pairs = [(r["round"], r[key]) for r in self.rounds if r[key] is not None]
        return [t for t, _ in pairs], [v for _, v in pairs]


class Drawings:
    """The drawings of a ledger's runs; each is made once per change of these runs."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._cache: dict[tuple[str, ...], tuple[Any, str]] = {}

    async def curves(self, runs: Sequence[str], names: Sequence[str], *, file: bool) -> str | None:
        """The curves of runs, for the page or as a file; None while nothing is known about them.

        Args:
            runs: the ids of the runs.
            names: what they are called, in the same order; a run without a name is called by its id.
            file: whether it is an SVG file.
        """
        details = {run: self.ledger.details[run] for run in runs if run in self.ledger.details}
        if not details:
            return None
        called = dict(zip(runs, names, strict=False))
        chosen = [DrawnRun(run, called.get(run, run), one.rounds, self._end(run)) for run, one in details.items()]
        version = self.ledger.epoch, [(run.id, details[run.id].version, run.end) for run in chosen]
        key = ("curves", str(file), *runs, *names)
        if key not in self._cache or self._cache[key][0] != version:
            text = await asyncio.to_thread(_file if file else _page, chosen)
            self._cache.pop(key, None)
            while len(self._cache) >= MOST_CACHED:
                self._cache.pop(next(iter(self._cache)))
            self._cache[key] = version, text
        return self._cache[key][1]

    def _end(self, run: str) -> int:
        of = self.ledger.runs[run][1].of if run in self.ledger.runs else None
        return max(of or 0, len(self.ledger.details[run].rounds))


def charts(runs: Sequence[DrawnRun]) -> list[Chart]:
    """The measures of one run in one chart; of several runs, a chart per measure, with the same colours in both."""
    end = max(run.end for run in runs)
    if len(runs) == 1:
        lines = [Line(name, *runs[0].points(key)) for key, name in MEASURES.items()]
        known = [line for line in lines if line.xs or line is lines[0]]
        return [_chart(" and ".join(line.name for line in known), known, end)]
    drawn: list[Chart] = []
    for key, title in MEASURES.items():
        lines = [
            Line(run.name, *run.points(key), number=i, link=f"#/run/{quote(run.id, safe='')}")
            for i, run in enumerate(runs)
        ]
        known = [line for line in lines if line.xs]
        if known:
            drawn.append(_chart(title, lines if key == "accuracy" else known, end))
    return drawn


def _chart(title: str, lines: Sequence[Line], end: int) -> Chart:
    first = min((line.xs[0] for line in lines if line.xs), default=1)  # FLARE counts from 0
    return Chart(title, "round", title, lines, xlim=(min(first, 1), max(end, 2)), ends=True)


def _page(runs: Sequence[DrawnRun]) -> str:
    drawn = Markup("").join(svg.chart(one, HEIGHT, live=True) for one in charts(runs))
    return f'<!doctype html><title>Curves</title><div class="charts">{drawn}</div>'


def _file(runs: Sequence[DrawnRun]) -> str:
    return svg.standalone(charts(runs))
