"""Curves and heatmaps as values. `svg` draws them in pages, `figure` in files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from honestly.lazy import cached_property

Grid = npt.NDArray[np.float64]

DASHES = ("", "7 3", "2 3", "9 3 2 3")
#: The number of colours of curves, see `style.css`.
COLOURS = 6
#: The most rows of a readable heatmap; of more clients, those with the lowest values are shown.
MOST_ROWS = 100
#: A mark in a cell of a heatmap, and the most columns that leave room for marks.
DOT, RING = 1, 2
MOST_MARKED = 200


@dataclass(frozen=True)
class Line:
    """A curve.

    Attributes:
        spread: the standard deviation at each point, where known.
        shares: each point's share of the data, where known.
        number: which colour and dashes it has; None for its position, so charts side by side can agree.
        link: the address that its name in the legend leads to.
    """

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    spread: Sequence[float] = ()
    shares: Sequence[float] = ()
    number: int | None = None
    link: str = ""

    def sizes(self) -> list[float]:
        """Areas of the dots between 0 and 1; they grow with the share of the data."""
        return [share**0.5 for share in self.shares] or [0.25] * len(self.xs)


@dataclass(frozen=True)
class Chart:
    """Curves over a common axis; `ends` shows each curve's last value beside its name."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    xlim: tuple[float, float] = (0.0, 1.0)
    ylim: tuple[float, float] = (0.0, 1.0)
    dots: bool = False
    diagonal: bool = False
    ends: bool = False

    def numbered(self) -> list[tuple[int, Line]]:
        """The curves, each with the number of its colour."""
        return [(i if line.number is None else line.number, line) for i, line in enumerate(self.lines)]


@dataclass(frozen=True)
class Heatmap:
    """Rows by columns as colours: 0 is bad or dishonest (orange), 1 good or honest (blue), NaN nothing.

    Attributes:
        title: above the map.
        x, y: what columns and rows are.
        rows, columns: their names; columns that are integers are rounds, of which only some are labelled.
        values: (rows, columns), between 0 and 1.
        word: a cell in words, from its row and column.
        marks: (rows, columns) of DOT, RING or 0.
        chosen: the rows to draw, for maps side by side that must show the same rows.
    """

    title: str
    x: str
    y: str
    rows: Sequence[str]
    columns: Sequence[int] | Sequence[str]
    values: Grid
    word: Callable[[int, int], str]
    marks: npt.NDArray[np.int8] | None = None
    chosen: Sequence[int] | None = None

    @property
    def numbered(self) -> bool:
        """Whether the columns are rounds rather than names."""
        return all(isinstance(column, int) for column in self.columns)

    def has_marks(self, kind: int) -> bool:
        """Whether marks of a kind are drawn: there are some, and room for them."""
        return self.marks is not None and len(self.columns) <= MOST_MARKED and bool((self.marks == kind).any())

    @property
    def strong(self) -> npt.NDArray[np.bool_]:
        """(rows, columns): whether the colour of a cell is so strong that a mark on it must be light."""
        return np.abs(self.values - 0.5) > 0.25  # not where it is NaN

    def drawn_rows(self) -> list[int]:
        """The rows that are drawn: those that were chosen, all, or those with the lowest means."""
        return drawn_rows(self.values) if self.chosen is None else list(self.chosen)

    def transpose(self) -> Heatmap:
        """Rows and columns exchanged, for screens that are taller than wide."""
        columns, marks = [str(name) for name in self.columns], None if self.marks is None else self.marks.T
        return Heatmap(
            self.title, self.y, self.x, columns, self.rows, self.values.T, lambda i, j: self.word(j, i), marks
        )

    def stretches(self, row: int) -> list[tuple[int, int, str]]:
        """(start, end, words) of cells in a row; neighbouring rounds with the same words, mark and value are joined."""
        return self._stretches[row]

    @cached_property
    def _stretches(self) -> dict[int, list[tuple[int, int, str]]]:
        return {row: self._join_cells(row) for row in self.drawn_rows()}

    def _join_cells(self, row: int) -> list[tuple[int, int, str]]:
        values: list[float] = np.nan_to_num(np.round(self.values[row], 2), nan=-1.0).tolist()
        marks: list[int] = [0] * len(values) if self.marks is None else self.marks[row].tolist()
        stretches: list[tuple[int, int, str]] = []
        numbered = self.numbered
        for t, (value, mark) in enumerate(zip(values, marks, strict=True)):
            if value < 0 and not mark:
                continue
            word = self.word(row, t)
            start, end, before = stretches[-1] if stretches else (0, -1, "")
            same = end == t and word == before and value == values[t - 1] and mark == marks[t - 1]
            if same and numbered:  # "rounds 3–7" is clear, a range of names is not
                stretches[-1] = (start, t + 1, word)
            else:
                stretches.append((t, t + 1, word))
        return stretches

    def span(self, start: int, end: int) -> str:
        """Columns in words."""
        if end - start == 1:
            return f"{self.x} {self.columns[start]}"
        return f"{self.x}s {self.columns[start]}–{self.columns[end - 1]}"

    def lines(self) -> list[tuple[str, str]]:
        """Every row in words, for readers who do not see the colours."""
        lines: list[tuple[str, str]] = []
        for row in self.drawn_rows():
            parts: list[str] = []
            for start, end, word in self.stretches(row):
                when = self.span(start, end).removeprefix(f"{self.x}s ").removeprefix(f"{self.x} ")
                parts.append(f"{when}: {word}")
            lines.append((self.rows[row], "; ".join(parts)))
        return lines


def drawn_rows(grid: Grid) -> list[int]:
    """The rows of a grid that are drawn: all, or those with the lowest means."""
    if len(grid) <= MOST_ROWS:
        return list(range(len(grid)))
    known = np.isfinite(grid)
    means = np.where(known, grid, 0).sum(axis=1) / np.maximum(known.sum(axis=1), 1)
    return sorted(np.argsort(np.where(known.any(axis=1), means, np.inf), kind="stable")[:MOST_ROWS].tolist())


def dashes(number: int) -> str:
    """The dashes of the n-th curve, so curves differ in more than colour."""
    return DASHES[number % len(DASHES)]


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers between two bounds.

    >>> ticks(1, 100), ticks(0, 0.4)
    ([1.0, 20.0, 40.0, 60.0, 80.0, 100.0], [0.0, 0.1, 0.2, 0.3, 0.4])
    """
    wide = (high - low) or 1.0
    size = 10.0 ** np.floor(np.log10(wide / most))
    step = next(size * m for m in (1, 2, 5, 10) if wide / (size * m) <= most)
    inner = np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1) * step
    marks = [float(f"{v:.10g}") + 0.0 for v in inner]
    if not marks or marks[0] - low > 0.4 * step:
        marks.insert(0, float(low))
    return marks
