"""Progress bars for all commands. Nothing is shown without a terminal or without rich."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any


class Bars:
    """Bars with a title, a count and a status text; `with Bars() as bars:` shows them. Text is never read as markup.

    Args:
        stderr: write to stderr, and only if that is a terminal; else to stdout, where a pipe gets the last state.
        unit: "steps" are counted; "bytes" are shown with their rate.
        left: show the remaining time.
        transient: remove the bars at the end.
        silent: show nothing.
    """

    def __init__(
        self, *, stderr: bool = False, unit: str = "steps", left: bool = False, transient: bool = False,
        silent: bool = False,
    ) -> None:  # fmt: skip
        hidden = stderr and not sys.stderr.isatty()
        self._progress: Any = None
        if silent or hidden or importlib.util.find_spec("rich") is None:
            return
        from rich import progress as rich
        from rich.console import Console

        columns: list[Any] = [rich.TextColumn("{task.description}", markup=False), rich.BarColumn(24)]
        if unit == "bytes":
            columns += [rich.DownloadColumn(), rich.TransferSpeedColumn()]
        else:
            columns.append(rich.MofNCompleteColumn())
        columns += [rich.TimeRemainingColumn()] if left else []
        columns.append(rich.TextColumn("{task.fields[news]}", markup=False))
        # the current stream: Ray redirects its own messages later
        console = Console(file=sys.stderr if stderr else sys.stdout, markup=False, highlight=False)
        self._progress = rich.Progress(*columns, console=console, refresh_per_second=4, transient=transient)

    def __enter__(self) -> Bars:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def add(self, title: str, total: float | None = None, *, done: float = 0) -> int:
        """Add a bar and return its number."""
        if self._progress is None:
            return 0
        return int(self._progress.add_task(title, total=total, completed=done, news=""))

    def update(self, bar: int, **changes: Any) -> None:
        """Change `done`, `advance`, `total` or `news` of a bar."""
        if self._progress is not None:
            named = {"completed" if key == "done" else key: value for key, value in changes.items()}
            self._progress.update(bar, **named)

    def remove(self, bar: int) -> None:
        """Remove a bar."""
        if self._progress is not None:
            self._progress.remove_task(bar)

    def say(self, text: str, style: str | None = None) -> None:
        """Print a line above the bars."""
        if self._progress is not None:
            self._progress.console.print(text, style=style, soft_wrap=True)
