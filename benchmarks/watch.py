"""Measure the cost of `honestly watch` on a large study: 720 runs of 100 rounds and 20 clients, 20 of them running.

    PYTHONPATH=src python benchmarks/watch.py

Prints how many bytes a page receives at first and per second, how long a query of the database takes, the delay of an
event, and the name of the machine. The numbers in docs/how-to/watch.md are from this script.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from study_being_run import FakeStudy
from watch_server import watched

from honestly.show.live.study import StudySource

RUNNING = 20


def milliseconds(call: object, times: int = 20) -> float:
    """The median time of a call."""
    seconds: list[float] = []
    for _ in range(times):
        began = time.perf_counter()
        call()  # type: ignore[operator]
        seconds.append(time.perf_counter() - began)
    return round(1000 * statistics.median(seconds), 1)


def large(folder: Path) -> FakeStudy:
    study = FakeStudy(
        folder, rounds=100, clients=20, rules=("FedAvg", "Median", "Krum", "Ours"), seeds=3,
        more={"dataset": ("mnist", "fmnist"), "config": (1, 2, 3), "alpha": (0.1, 0.25, 0.5, 1.0, 10.0)},
    )  # fmt: skip
    for id in study.ids()[:-RUNNING]:
        study.finish(id)
    for id in study.ids()[-RUNNING:]:
        study.advance(id, 50)
    return study


def main() -> None:
    results: dict[str, object] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "load": os.getloadavg()[0],
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study = large(folder)
        running = study.ids()[-RUNNING:]
        results["runs"], results["running"] = len(study.ids()), RUNNING
        results["database_MB"] = round((folder / "study.sqlite").stat().st_size / 1e6, 1)
        source = StudySource(folder)
        began = time.perf_counter()
        source.look()
        results["first_look_ms"] = round(1000 * (time.perf_counter() - began), 1)
        results["look_unchanged_ms"] = milliseconds(source.look)
        looks: list[float] = []
        for _ in range(10):
            for id in running:
                study.advance(id, 1)
            began = time.perf_counter()
            source.look()
            looks.append(time.perf_counter() - began)
        results["look_all_running_changed_ms"] = round(1000 * statistics.median(looks), 1)
        results["rounds_of_a_run_ms"] = milliseconds(lambda: (source.details.clear(), source.detail(study.ids()[0])))
        source.close()
        with watched(folder, interval=0.05) as server:
            events = server.events()
            events.until(lambda e: len(e.runs) == len(study.ids()) and e.id)
            results["first_batch_kB"] = round(events.size / 1000, 1)
            ours = next(e.id for e in study.entries if e.cell["rule"] == "Ours")
            run = server.events(f"/events?run={ours}&since={events.id}")
            run.until(lambda e: e.details)
            results["a_finished_run_kB"] = round(run.size / 1000, 1)
            sizes, delays = [], []
            for _ in range(20):
                before, done = events.size, study.store.run(running[0]).rounds
                began = time.perf_counter()
                study.advance(running[0], 1)
                events.until(lambda e, done=done: e.runs[running[0]]["rounds"] > done)
                delays.append(time.perf_counter() - began)
                sizes.append(events.size - before)
            results["a_round_of_one_run_kB"] = round(statistics.median(sizes) / 1000, 2)
            results["write_to_event_ms_at_50_ms_interval"] = round(1000 * statistics.median(delays), 1)
        study.close()
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
