"""A table of numbers for people: on a terminal, in Markdown, in HTML, in JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from honestly.show.text import for_latex, for_markdown, printable

Cell: TypeAlias = str | float | int | None
#: The beginning of a number in a table; a dash or a dot replaces a missing one.
NUMBER = re.compile(r"[-+–·]?\d|[-–·]?$|> \d|nan$")


class ShownCell(NamedTuple):
    """A cell of a page: its text and its classes."""

    text: str
    kind: str


def text(cell: Cell) -> str:
    """Three decimals below 10, three digits above, a dash for a missing value, "> 10000" for huge ones.

    >>> [text(x) for x in (0.12345, 1234.5, 3, None, "mean", 1e9)]
    ['0.123', '1.23e+03', '3', '-', 'mean', '> 10000']
    """
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return str(cell)
    if math.isnan(cell):
        return "nan"
    if cell >= 1e4:
        return "> 10000"
    return f"{cell:.3f}" if abs(cell) < 10 else f"{cell:.3g}"


@dataclass(frozen=True)
class Table:
    """A title, what it shows, and rows; the first column names the row. ``best`` marks the cells to set in bold."""

    name: str
    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    best: frozenset[tuple[int, int]] = frozenset()

    def markdown(self) -> str:
        """A GitHub table below its note."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cells) + " |"

        def safe(cell: Cell) -> str:
            return for_markdown(text(cell))

        body = [
            line([f"**{safe(c)}**" if (i, j) in self.best else safe(c) for j, c in enumerate(row)])
            for i, row in enumerate(self.rows)
        ]
        rule = line(["---", *("---:" for _ in self.columns[1:])])
        head = line([for_markdown(column) for column in self.columns])
        return "\n".join([f"**{for_markdown(self.title)}.** {self.note}", "", head, rule, *body, ""])

    def latex(self) -> str:
        """A table environment for a document that uses booktabs."""

        def line(cells: Sequence[str]) -> str:
            # the end of the row before takes a bracket for its own argument, and swallows a star
            guard = "{}" if cells[0][:1] in ("[", "*") else ""
            return "    " + guard + " & ".join(cells) + r" \\"

        body = [
            line(
                [
                    f"\\textbf{{{for_latex(text(c))}}}" if (i, j) in self.best else for_latex(text(c))
                    for j, c in enumerate(row)
                ]
            )
            for i, row in enumerate(self.rows)
        ]
        return "\n".join([
            r"\begin{table}[t]", r"  \centering\small\setlength{\belowcaptionskip}{4pt}",
            f"  \\caption{{{for_latex(self.title)}. {for_latex(self.note)}}}",
            r"  \resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            f"  \\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}", r"    \toprule",
            line([for_latex(column) for column in self.columns]), r"    \midrule", *body, r"    \bottomrule",
            r"  \end{tabular}}", r"\end{table}", "",
        ])  # fmt: skip

    def html(self, level: int = 2) -> str:
        """A table element below its title, a heading of the given level, and its note."""
        from honestly.show.html import part

        return part("table", self, level=level)

    def is_text(self, j: int) -> bool:
        """Whether a column has words, which are left-aligned, rather than numbers."""
        words = [cell for row in self.rows if isinstance(cell := row[j], str)]
        return j == 0 or any(not NUMBER.match(word) for word in words)

    def _kind(self, j: int) -> str:
        """The class of a cell: long text may wrap, short text may not."""
        longest = max((len(text(row[j])) for row in self.rows), default=0)
        return "" if not self.is_text(j) else "long" if longest > 30 else "text"

    @property
    def stacks(self) -> bool:
        """Whether a phone shows the cells of a row below each other, because a column has sentences."""
        return any(self._kind(j) == "long" for j in range(1, len(self.columns)))

    def cells(self) -> list[list[ShownCell]]:
        """Rows as a page shows them."""
        kinds = [self._kind(j) for j in range(len(self.columns))]
        return [
            [
                ShownCell(text(c), " ".join(filter(None, (kinds[j], "best" if (i, j) in self.best else ""))))
                for j, c in enumerate(row)
            ]
            for i, row in enumerate(self.rows)
        ]

    def records(self) -> list[dict[str, Cell]]:
        """One mapping for each row; infinite values become None, which JSON can hold."""
        return [
            {
                column: None if isinstance(c, float) and not math.isfinite(c) else c
                for column, c in zip(self.columns, row, strict=True)
            }
            for row in self.rows
        ]

    def rich(self, width: int | None = None) -> Any:
        """For `rich.console.Console.print`; columns that do not fit the width continue in tables below."""
        from rich.console import Group
        from rich.markup import escape
        from rich.table import Table as RichTable
        from rich.text import Text

        parts: list[Any] = []
        chosen = self.columns_that_fit(width)
        for number, columns in enumerate(chosen):
            table = RichTable(
                title=escape(printable(self.title)) if number == 0 else None,
                title_justify="left",
            )
            widths = self._widths(columns, width)
            for j in columns:
                name = escape(printable(self.columns[j]))
                table.add_column(name, justify="left" if j == 0 else "right", overflow="fold", width=widths.get(j))
            for i, row in enumerate(self.rows):
                cells = {j: escape(printable(text(row[j]))) for j in columns}
                table.add_row(*(f"[bold]{c}[/]" if (i, j) in self.best else c for j, c in cells.items()))
            parts.append(table)
        return Group(*parts, Text(self.note, style="dim italic")) if self.note else Group(*parts)

    def columns_that_fit(self, width: int | None) -> list[list[int]]:
        """The columns, cut into groups that are no wider than a terminal; the first column leads each of them.

        >>> Table("t", "", "", ["rule", "told", "kappa"], [["bayesian", "nothing", 0.1]]).columns_that_fit(25)
        [[0, 1], [0, 2]]
        """
        groups: list[list[int]] = [[0]]
        for j in range(1, len(self.columns)):
            needed = 1 + sum(3 + self._width(i, width) for i in (*groups[-1], j))
            if width is not None and len(groups[-1]) > 1 and needed > width:
                groups.append([0])
            groups[-1].append(j)
        return groups

    def _widths(self, columns: Sequence[int], width: int | None) -> dict[int, int]:
        """The width of each column where the terminal has one: heads on one line if that fits, else by words."""
        if width is None:
            return {}
        narrow = {j: self._width(j, width) for j in columns}
        wide = {j: max(narrow[j], len(self.columns[j])) for j in columns}
        return wide if 1 + sum(3 + w for w in wide.values()) <= width else narrow

    def _width(self, j: int, width: int | None) -> int:
        """Characters of the widest cell of a column, and of the longest word of its name; at most half the terminal."""
        words = max((len(word) for word in self.columns[j].split()), default=0)
        widest = max([words, *(len(printable(text(row[j]))) for row in self.rows)])
        return widest if width is None else min(widest, width // 2 - 4)


def lowest(
    rows: Sequence[Sequence[Cell]], columns: Sequence[int], among: Sequence[bool] | None = None
) -> frozenset[tuple[int, int]]:
    """The cells with the lowest number of each column, of the rows that count.

    >>> sorted(lowest([["a", 1.0], ["b", 2.0]], [1]))
    [(0, 1)]
    """
    cells: set[tuple[int, int]] = set()
    for j in columns:
        numbers: dict[int, float] = {}
        for i, row in enumerate(rows):
            cell = row[j]
            if isinstance(cell, float) and (among is None or among[i]):
                numbers[i] = cell
        if numbers:
            least = min(numbers.values())
            cells |= {(i, j) for i, x in numbers.items() if text(x) == text(least)}
    return frozenset(cells)


def fill(page: str, parts: Mapping[str, str]) -> str:
    """The page with the text between `<!-- NAME -->` and `<!-- end NAME -->` replaced; a mark without part is an error.

    >>> fill("a <!-- x --> old <!-- end x --> b", {"x": "new"})
    'a <!-- x -->\\nnew\\n<!-- end x --> b'
    """
    marks = re.findall(r"<!-- (?!end )([\w-]+) -->", page)
    for name in marks:
        if name not in parts:
            raise ValueError(f"the page asks for '{name}', which this study does not have; it has {', '.join(parts)}")
        pattern = re.compile(rf"(<!-- {name} -->).*?(<!-- end {name} -->)", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"the page has '<!-- {name} -->' without '<!-- end {name} -->'")
        page = pattern.sub(lambda m, name=name: f"{m[1]}\n{parts[name].strip()}\n{m[2]}", page)
    return page
