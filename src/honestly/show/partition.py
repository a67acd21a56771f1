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

    from honestly.show.tables import Cell, Table

    most = max(int(counts.max()), 1)
    rows: list[list[Cell]] = []
    for k, row in enumerate(counts.tolist()):
        mark = " *" if k in malicious else ""
        rows.append([f"{k}{mark}", sum(row), *(f"{n} {BARS[-(-8 * n // most)]}" for n in row)])
    console = Console(emoji=False)  # the name of a class may be between colons
    console.print(Table("partition", title, "", ["client", "images", *classes], rows).rich(console.width))
    if malicious:
        console.print("* malicious")
