"""Which client has how many images of which class, as a table for a terminal."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

BARS = " ▁▂▃▄▅▆▇█"


def print_partition(
    title: str, counts: npt.NDArray[np.int64], classes: Sequence[str], malicious: Collection[int]
) -> None:
    """Print a row per client and a column per class; `counts` is (clients, classes)."""
    from rich.console import Console
    from rich.table import Table as RichTable

    table = RichTable(title=title)
    for name in ("client", "images", *classes):
        table.add_column(name, justify="right")
    most = max(int(counts.max()), 1)
    for k, row in enumerate(counts.tolist()):
        mark = " *" if k in malicious else ""
        table.add_row(f"{k}{mark}", str(sum(row)), *(f"{n} {BARS[-(-8 * n // most)]}" for n in row))
    console = Console(markup=False)  # names of folders, files and classes may have brackets, which are not markup
    console.print(table)
    if malicious:
        console.print("* malicious")
