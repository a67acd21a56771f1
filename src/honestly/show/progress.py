"""Progress of a running study, read from its store, whichever way the runs are done."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from honestly.bars import Bars
from honestly.runs.reader import read_record
from honestly.runs.store import Run, Store
from honestly.studies.study import describe


class Monitor:
    """Reads the store twice a second and reports changes to its methods; subclasses show them."""

    def __init__(self, folder: Path, ids: Collection[str]) -> None:
        self.folder, self.ids = folder, ids
        self.known: dict[str, Run] = {}
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._look, name="progress", daemon=True)

    def _look(self) -> None:
        with Store.read(self.folder) as store:
            self._compare(store, quietly=True)
            version = store.version()
            while not self.ended.wait(0.5):
                if (now := store.version()) != version:
                    version = now
                    self._compare(store)
            self._compare(store)

    def _compare(self, store: Store, *, quietly: bool = False) -> None:
        runs = [run for run in store.runs() if run.id in self.ids]
        for run in runs:
            old = self.known.get(run.id)
            if not quietly and run.status in ("done", "failed") and (old is None or old.status != run.status):
                self.end_of_run(run)
            self.known[run.id] = run
        self.news(runs, store)

    def end_of_run(self, run: Run) -> None:
        """A run is done, or has failed."""

    def news(self, runs: list[Run], store: Store) -> None:
        """Something has changed."""

    def __enter__(self) -> Monitor:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()


class Lines(Monitor):
    """One JSON object for every run that ends."""

    def __init__(self, folder: Path, ids: Collection[str]) -> None:
        super().__init__(folder, ids)
        self.out = sys.stdout

    def end_of_run(self, run: Run) -> None:
        """The run in one line."""
        print(json.dumps(line_of(run), separators=(",", ":")), file=self.out, flush=True)


def line_of(run: Run) -> dict[str, Any]:
    """The summary of a run that has ended."""
    final = run.summary or {}
    seconds = None if run.finished is None or run.started is None else round(run.finished - run.started, 3)
    return {
        "event": "run", "id": run.id, "cell": run.cell, "status": run.status, "rounds": run.rounds, "of": run.of,
        "accuracy": final.get("accuracy_last"), "asr": final.get("asr_last"), "error": run.error, "seconds": seconds,
    }  # fmt: skip


class Live(Monitor):
    """A bar of rounds with the remaining time, and the current runs with their accuracy."""

    def __init__(self, folder: Path, ids: Collection[str]) -> None:
        super().__init__(folder, ids)
        self.bars = Bars()
        self.whole = self.bars.add("study")
        self.bar_of_run: dict[str, int] = {}
        self.start: tuple[float, int] | None = None

    def __enter__(self) -> Monitor:
        self.bars.__enter__()
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self.bars.__exit__()

    def end_of_run(self, run: Run) -> None:
        """Report a failure at once; finished runs are only counted."""
        if run.status == "failed":
            self.bars.say(f"failed {describe(run.cell)}: {run.error or ''}", style="red")

    def news(self, runs: list[Run], store: Store) -> None:
        """Update the counts and the current runs."""
        ended = [run for run in runs if run.status in ("done", "failed")]
        failed = sum(run.status == "failed" for run in runs)
        total = sum(run.of for run in runs)
        done = sum(run.of if run in ended else run.rounds for run in runs)
        text = (
            f"{len(ended)} of {len(runs)} runs"
            + (f", {failed} failed" if failed else "")
            + self._time_left(done, total)
        )
        self.bars.update(self.whole, total=total, done=done, news=text)
        working = {run.id: run for run in runs if run.status == "running"}
        for id in [id for id in self.bar_of_run if id not in working]:
            self.bars.remove(self.bar_of_run.pop(id))
        for id, run in list(working.items())[:16]:
            if id not in self.bar_of_run:
                self.bar_of_run[id] = self.bars.add("  run", run.of)
            self.bars.update(self.bar_of_run[id], done=run.rounds, news=_now(run, store))

    def _time_left(self, done: int, total: int) -> str:
        """The remaining time at the speed since the start."""
        now = time.monotonic()
        if self.start is None:
            self.start = (now, done)
        since, first = self.start
        if done <= first or now - since < 2:
            return ""
        return f", {duration((total - done) * (now - since) / (done - first))} left"


def _now(run: Run, store: Store) -> str:
    accuracy = read_record(store.last_round(run.id))[0].accuracy
    news = describe(run.cell)
    return news if accuracy is None else f"{news}  accuracy {accuracy:.3f}"


def duration(seconds: float) -> str:
    """A duration in words.

    >>> duration(42), duration(150), duration(8000), duration(400_000)
    ('42 s', '2.5 min', '2.2 h', '4.6 days')
    """
    for size, name in ((86_400.0, "days"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.0f} s"
