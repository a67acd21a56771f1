"""How far a study is, and how long it will take."""

from __future__ import annotations

from honestly.show.live.model import RunRow
from honestly.show.live.progress import progress


def run(
    id: str, status: str, rounds: int, seconds: float | None = None, dataset: str = "mnist", at: float = 0
) -> RunRow:
    return RunRow(id, {"dataset": dataset}, status, rounds, 100, updated=at, seconds=seconds)  # type: ignore[arg-type]


def test_parallel_runs_share_the_remaining_time() -> None:
    runs = [run("a", "done", 100, 2.0), *(run(f"r{i}", "running", 50) for i in range(4)), run("p", "pending", 0)]
    assert progress(runs)["left"] == 200  # 300 rounds of 2 s over 4 workers are 150 s, but p alone takes 200
    assert progress(runs)["counts"] == {"pending": 1, "running": 4, "done": 1, "failed": 0, "stopped": 0}


def test_rounds_take_as_long_as_others_on_their_data_set() -> None:
    runs = [
        run("a", "done", 100, 1.0), run("b", "done", 100, 30.0, "cifar10"),
        run("c", "running", 90), run("d", "pending", 0, None, "cifar10"),
    ]  # fmt: skip
    assert progress(runs)["left"] == 10 * 1 + 100 * 30


def test_recent_speed_counts() -> None:
    old = [run(f"old{i}", "done", 100, 100.0, at=1.0) for i in range(50)]
    new = [run(f"new{i}", "done", 100, 1.0, at=2.0) for i in range(20)]
    assert progress([*old, *new, run("r", "running", 0, at=3.0)])["left"] == 100


def test_without_workers_or_times_there_is_no_estimate() -> None:
    assert progress([run("a", "done", 100, 1.0), run("b", "pending", 0)])["left"] is None
    assert progress([run("a", "running", 0)])["left"] is None
    assert progress([])["left"] is None
    assert progress([RunRow("f", {}, "running", 3)])["of"] is None
