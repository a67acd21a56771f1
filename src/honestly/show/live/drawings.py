"""What the page draws of its runs: the components of the written pages, drawn here and put in place by the browser."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote

from markupsafe import Markup

from honestly.show import svg
from honestly.show.chart import Chart, Heatmap, Line
from honestly.show.live.ledger import Ledger
from honestly.show.live.run_maps import heatmaps, maps_page
from honestly.show.svg_maps import cell_image

MEASURES = {"accuracy": "accuracy", "asr": "attack success rate"}
HEIGHT = 190
D = TypeVar("D")
#: Drawings that are cached until their runs change, because several tabs ask for the same ones.
MOST_CACHED = 128


@dataclass(frozen=True)
class DrawnRun:
    """A run to draw.

    Attributes:
        id: of the run.
        name: what it is called beside others.
        head, rounds: see `honestly.show.live.rounds`.
        end: the number of rounds in the end, as far as it is known.
        version: another one after every change.
    """

    id: str
    name: str
    head: dict[str, Any]
    rounds: Sequence[dict[str, Any]]
    end: int
    version: str

    def points(self, key: str) -> tuple[list[int], list[float]]:
        """The rounds in which a number was measured, and the number."""
        pairs = [(r["round"], r[key]) for r in self.rounds if r[key] is not None]
        return [t for t, _ in pairs], [v for _, v in pairs]


class Drawings:
    """The drawings of a ledger's runs; each is made once per change of these runs, in a thread.

    Every method returns None while nothing is known about the runs: their rounds are read while a page watches them.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._cache: dict[tuple[Any, ...], tuple[dict[str, str], Any]] = {}  # run -> version, and the drawing

    async def curves(self, runs: Sequence[str], names: Sequence[str] = ()) -> str | None:
        """The curves of runs for the page; a run without a name is called by its id."""
        return await self._draw(("curves", *names), self._find(runs, names), _curves_page)

    async def curves_file(self, runs: Sequence[str], names: Sequence[str] = ()) -> str | None:
        """The curves of runs as an SVG file."""
        return await self._draw(
            ("curves.svg", *names), self._find(runs, names), lambda them: svg.standalone(charts(them))
        )

    async def maps(self, run: str, theme: str) -> str | None:
        """The maps of a run for the page; their cells are images at addresses of their own."""
        chosen = self._find([run])
        maps = await self._maps(chosen)

        def draw(runs: Sequence[DrawnRun]) -> str:
            return maps_page(run, maps, runs[0].head, theme=theme, version=runs[0].version)

        return await self._draw(("maps", theme), chosen, draw)

    async def cells(self, run: str, number: int, theme: str) -> bytes | None:
        """The cells of a run's n-th map as a PNG file."""
        chosen = self._find([run])
        maps = await self._maps(chosen)
        if not 0 <= number < len(maps):
            return None
        return await self._draw(("cells", number, theme), chosen, lambda _: cell_image(maps[number], theme))

    async def maps_file(self, runs: Sequence[str], names: Sequence[str] = ()) -> str | None:
        """The maps of runs as an SVG file."""
        chosen = self._find(runs, names)
        maps = [(run.name, await self._maps([run])) for run in chosen]
        title = "{0}: {1}" if len(chosen) > 1 else "{1}"
        parts = [replace(one, title=title.format(name, one.title)) for name, some in maps for one in some]
        return await self._draw(("maps.svg", *names), chosen, lambda _: svg.standalone(parts))

    async def _maps(self, runs: Sequence[DrawnRun]) -> Sequence[Heatmap]:
        """The maps of one run, which are several drawings."""
        return await self._draw(("heatmaps",), runs, lambda r: heatmaps(r[0].head, r[0].rounds, r[0].end)) or ()

    def _find(self, runs: Sequence[str], names: Sequence[str] = ()) -> list[DrawnRun]:
        called = dict(zip(runs, names, strict=False))
        chosen: list[DrawnRun] = []
        for run in runs:
            if run in self.ledger.details:
                one = self.ledger.details[run]
                of = self.ledger.runs[run][1].of if run in self.ledger.runs else None
                end = max(of or 0, len(one.rounds))
                version = f"{self.ledger.epoch}-{one.version}-{end}"
                chosen.append(DrawnRun(run, called.get(run, run), one.head, one.rounds, end, version))
        return chosen

    async def _draw(
        self, what: tuple[Any, ...], runs: Sequence[DrawnRun], draw: Callable[[Sequence[DrawnRun]], D]
    ) -> D | None:
        """What `draw` makes of the runs, from the cache if they have not changed."""
        if not runs:
            return None
        key, versions = (*what, *(run.id for run in runs)), {run.id: run.version for run in runs}
        if key not in self._cache or self._cache[key][0] != versions:
            drawing = await asyncio.to_thread(draw, runs)
            self._cache.pop(key, None)
            # maps hold megabytes: those of a run that nobody watches any more are dropped
            watched = self.ledger.details.keys()
            entries = [(other, entry) for other, entry in self._cache.items() if entry[0].keys() <= watched]
            self._cache = dict(entries[1 - MOST_CACHED :])
            self._cache[key] = versions, drawing
            return drawing
        return self._cache[key][1]


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


def _curves_page(runs: Sequence[DrawnRun]) -> str:
    drawn = Markup("").join(svg.chart(one, HEIGHT, live=True) for one in charts(runs))
    return f'<!doctype html><title>Curves</title><div class="charts">{drawn}</div>'
