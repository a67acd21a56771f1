"""Ray: losing a node loses only its last round. `make test-all` installs it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from honestly.runs.store import ATTEMPTS, Store
from honestly.sim.data import load
from honestly.sim.experiment import Experiment
from honestly.sim.run import run as simulate
from honestly.studies.cluster import Driver, check_address, files_of, rounds_of
from honestly.studies.study import Study
from honestly.studies.work import WorkOptions, one_by_one

STUDY = """
name = "small"
[base]
clients = 6
rounds = {rounds}
epochs = 1
model = "mlp"
malicious = 2
attack = "sign_flip"
[axes]
rule = ["mean", {{ label = "Ours", rule = "bayesian" }}]
seed = [0, 1, 2]
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_study_survives_the_loss_of_a_node(tmp_path: Path) -> None:
    study, out = tmp_path / "small.toml", tmp_path / "out"
    study.write_text(STUDY.format(rounds=150))
    script = Path(__file__).with_name("lose_a_node.py")
    done = subprocess.run(
        [sys.executable, str(script), str(study), str(out)], capture_output=True, text=True, timeout=380,
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["code"], found["errors"]) == (0, "")
    assert len(found["killed"]) == 2, "a node was lost in mid-study"
    assert found["at_once"] == 2, "a run has a GPU, and a node has one"
    lines = [json.loads(line) for line in found["lines"].splitlines()]
    assert (lines[-1]["done"], lines[-1]["failed"], lines[-1]["left"]) == (6, 0, 0)
    with Store.read(out) as store:
        runs = store.runs()
        cells = [(rule, seed) for rule in ("mean", "Ours") for seed in (0, 1, 2)]
        assert [(run.cell["rule"], run.cell["seed"]) for run in runs] == cells, "every cell is there, once"
        for run in runs:
            assert (run.status, run.rounds) == ("done", 150)
            if run.id in found["killed"]:
                assert store.rounds(run.id) == simulate(Experiment.of(run.experiment)).records
        resumed = {run.id: (run.provenance or {})["resumed_at"] for run in runs}
        assert sum(at >= 2 for at in resumed.values()) == 1, "the lost one went on, the others were left alone"
        assert {id for id, at in resumed.items() if at} < set(found["killed"])


class FakeRay:
    """Tasks run here, one message at a time; a stream may be told to break."""

    class exceptions:  # noqa: N801  (as Ray calls it)
        class RayError(Exception): ...

        class RayTaskError(RayError):
            def __init__(self, cause: Exception) -> None:
                self.cause = cause

    def __init__(self, breaks: dict[int, Exception], cpus: float = 1.0) -> None:
        self.breaks, self.cpus, self.started, self.asked = breaks, cpus, 0, []

    def remote(self, **options: Any) -> Any:
        self.asked.append(options)

        def decorate(task: Any) -> Any:
            def start(*args: Any) -> Any:
                self.started += 1
                return self._stream(task(*args), self.breaks.get(self.started))

            return type("Remote", (), {"remote": staticmethod(start)})

        return decorate

    def _stream(self, messages: Any, broken: Exception | None) -> Any:
        with contextlib.closing(messages):
            for number, message in enumerate(messages):
                if broken is not None and number == 3:
                    raise broken
                yield message

    def put(self, value: Any) -> Any:
        return value

    def get(self, value: Any) -> Any:
        return value

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": self.cpus}}]

    def wait(self, streams: Any, **_: Any) -> Any:
        return streams[:1], streams[1:]

    def cancel(self, stream: Any, *, force: bool) -> None:
        stream.close()

    def get_gpu_ids(self) -> list[int]:
        return []

    def get_runtime_context(self) -> Any:
        return type("Context", (), {"get_assigned_resources": lambda self: {"CPU": 1.0}})()


def on_fake(store: Store, ray: FakeRay, monkeypatch: pytest.MonkeyPatch, **needs: float) -> bool:
    monkeypatch.setattr("honestly.studies.cluster._ray", lambda: ray)
    ids = {run.id for run in store.runs()}
    return Driver(store, ids, WorkOptions(), needs.get("gpus", 0.0), needs.get("cpus", 1.0), ray).run()


def test_lost_tasks_resume_from_their_latest_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost, wrong = FakeRay.exceptions.RayError("node died"), FakeRay.exceptions.RayTaskError(ValueError("no such data"))
    ray = FakeRay({1: lost, 2: lost, 4: wrong})
    with Store.open(tmp_path) as store:
        store.add(Study.parse(STUDY.format(rounds=6)).entries()[:3])
        assert on_fake(store, ray, monkeypatch)
        first, second, third = store.runs()
        assert ray.started == 5
        assert (first.status, (first.provenance or {})["resumed_at"]) == ("done", 4), "two rounds before each loss"
        assert (second.status, second.error) == ("failed", "ValueError: no such data")
        assert third.status == "done"
        assert store.rounds(first.id) == simulate(Experiment.of(first.experiment)).records
        assert not store.run_folder(first.id).exists()


def test_a_run_that_loses_several_nodes_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Never(FakeRay):
        def _stream(self, messages: Any, broken: Exception | None) -> Any:
            yield next(messages)
            messages.close()
            raise self.exceptions.RayError("out of memory")

    ray = Never({})
    with Store.open(tmp_path) as store:
        store.add(Study.parse(STUDY.format(rounds=6)).entries()[:1])
        assert on_fake(store, ray, monkeypatch)
        (run,) = store.runs()
        assert (run.status, ray.started) == ("failed", ATTEMPTS)
        assert "lost 3 times" in str(run.error)


def test_a_cluster_gets_as_many_runs_as_it_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 16.0, "GPU": 2.0}},
        {"Alive": True, "Resources": {"CPU": 2.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    monkeypatch.setattr(FakeRay, "nodes", lambda self: nodes)
    with Store.open(tmp_path) as store:
        for gpus, cpus, room in (
            (0.25, 1.0, 8), (0.25, 4.0, 4), (1.0, 1.0, 2), (0.0, 1.0, 18), (0.0, 12.0, 1), (0.0, 0.0, 2), (4, 1, 0),
        ):  # fmt: skip
            ray = FakeRay({})
            assert Driver(store, set(), WorkOptions(), gpus, cpus, ray).room() == room
            assert ray.asked == [{"num_cpus": cpus, "num_gpus": gpus, "max_retries": 0}]
        with pytest.raises(ValueError, match="no node of the cluster has 4 GPU and 1 CPU"):
            on_fake(store, FakeRay({}), monkeypatch, gpus=4)


def test_an_address_without_a_cluster_is_refused_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for address, message in {
        f"127.0.0.1:{port}": "no answer", "somewhere:port": "write HOST:PORT", "x:99999": "write HOST:PORT",
        "ray://head:10001": "start it on a node",
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=message):
            check_address(address)
    check_address("")
    check_address("auto")
    with socket.create_server(("127.0.0.1", 0)) as there:
        check_address(f"127.0.0.1:{there.getsockname()[1]}")


def test_a_task_starts_where_its_warm_up_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("honestly.studies.cluster._ray", lambda: FakeRay({}))
    text = STUDY.format(rounds="2\nwarm_up = 2").replace("seed = [0, 1, 2]", "seed = [0]")
    with Store.open(tmp_path) as store:
        entries = Study.parse(text).entries()
        store.add(entries)
        one_by_one(store, {entries[0].id}, "w", WorkOptions())
        start = files_of(store.run_folder(entries[0].id), 2)
        messages = list(rounds_of(entries[1].experiment, {}, start, load("digits")))
        records = [message["record"] for message in messages if "record" in message]
        assert records == simulate(Experiment.of(json.loads(entries[1].experiment))).records
        assert messages[0] == {"resumed_at": 0}
        assert messages[-1]["provenance"]["resumed_at"] == 0
