"""Tables for a terminal, a pipe and a narrow window; drawn by rich where it is installed, as plain text elsewhere."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

# Below this, columns that must be wrapped become a list.
NARROW = 100


@dataclass
class TerminalTable:
    """Rows under column names. ``styles`` colours rows, ``right`` names the columns of numbers.

    >>> TerminalTable(["name", "needs"], [["krum", "f"], ["mean", ""]]).show(width=40)
    name  needs
    krum  f
    mean
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()
    styles: Sequence[str] = field(default_factory=tuple)

    def show(self, width: int | None = None) -> None:
        """Print the table, or a list of rows if the window is too narrow."""
        width = width or terminal_width()
        if width is None:  # a pipe or file has no width: one line per row, for grep
            print("\n".join(self._align()))
            return
        fits = sum(self._widths()) + 2 * (len(self.columns) - 1) <= width
        if fits and not _can_draw():
            print("\n".join(self._align()))
        elif fits or (width >= NARROW and _can_draw()):
            self._draw(width)
        else:
            print("\n".join(self._list(width)))

    def _widths(self) -> list[int]:
        return [max(len(row[i]) for row in (self.columns, *self.rows)) for i in range(len(self.columns))]

    def _align(self) -> list[str]:
        widths = self._widths()
        turn = [str.rjust if name in self.right else str.ljust for name in self.columns]
        return [
            "  ".join(turn[i](cell, widths[i]) for i, cell in enumerate(row)).rstrip()
            for row in (self.columns, *self.rows)
        ]

    def _list(self, width: int) -> list[str]:
        lines: list[str] = []
        for name, *cells in self.rows:
            lines.append(name)
            for title, cell in zip(self.columns[1:], cells, strict=True):
                text = f"{title}: {cell}" if title else cell
                if cell:
                    lines += textwrap.wrap(text, max(width, 20), initial_indent="  ", subsequent_indent="    ")
        return lines

    def _draw(self, width: int) -> None:
        from rich import box
        from rich.console import Console
        from rich.table import Table as Drawn
        from rich.text import Text

        drawn = Drawn(box=box.SIMPLE_HEAD, pad_edge=False)
        for i, column in enumerate(self.columns):
            justify = "right" if column in self.right else "left"
            drawn.add_column(column, style="bold" if i == 0 else "", no_wrap=i == 0, justify=justify, overflow="fold")
        for i, row in enumerate(self.rows):
            drawn.add_row(*map(Text, row), style=self.styles[i] if self.styles else "")
        Console(width=width, highlight=False).print(drawn)


def terminal_width() -> int | None:
    """Columns of the terminal; None where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() or os.environ.get("COLUMNS") else None


def _can_draw() -> bool:
    """Whether rich is installed and the output is a terminal; pipes get plain text."""
    return sys.stdout.isatty() and importlib.util.find_spec("rich") is not None
