"""A small study that was interrupted."""

from __future__ import annotations

from pathlib import Path

from honestly.runs.store import Store
from honestly.studies.study import Study
from honestly.studies.work import WorkOptions, one_by_one

STUDY = """
name = "small"
[base]
clients = 4
rounds = 3
epochs = 1
model = "mlp"
[axes]
rule = ["mean", "median"]
seed = [0, 1]
"""


def half_done(folder: Path, text: str = STUDY) -> Store:
    """One run is done, one stopped after its second round, the others have not started."""
    store = Store.open(folder)
    entries = Study.parse(text).entries()
    store.add(entries)
    store.set_meta(name="small", study=text)
    everything = {e.id for e in entries}
    one_by_one(store, {entries[0].id}, "w", WorkOptions())
    asked = iter([False, False, True])
    one_by_one(store, everything, "w", WorkOptions(halt=lambda: next(asked)))
    assert [(run.status, run.rounds) for run in store.runs()] == [
        ("done", 3),
        ("pending", 2),
        ("pending", 0),
        ("pending", 0),
    ]
    return store
