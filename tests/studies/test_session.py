"""results/session.py and results/make.py: a session with a time limit is packed, imported, and resumed elsewhere."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from honestly.cli import main as honestly
from honestly.runs.store import Store
from honestly.studies.study import Study, text_of

RESULTS = Path(__file__).parents[2] / "results"
STUDY = """
name = "tiny"
[base]
clients = 5
rounds = 3
epochs = 1
model = "mlp"
malicious = 1
attack = "sign_flip"
[axes]
rule = [{ label = "Ours", rule = "bayesian" }, { label = "FedAvg", rule = "mean" }]
start = [{ label = "at once", warm_up = 0 }, { label = "from a model", warm_up = 2 }]
"""


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RESULTS))  # make.py takes a function of session.py


def module(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"results_{name}", RESULTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found  # dataclasses look their module up
    spec.loader.exec_module(found)
    return found


def numbers(folder: Path) -> dict[str, Any]:
    with Store.read(folder) as store:
        return {run.id: (run.status, run.rounds, run.summary, store.rounds(run.id)) for run in store.runs()}


def statuses(folder: Path) -> dict[str, str]:
    """The status of the runs of each rule, which all have the same."""
    with Store.read(folder) as store:
        found = {run.cell.get("rule", "warm-up"): run.status for run in store.runs()}
        assert all(found[run.cell.get("rule", "warm-up")] == run.status for run in store.runs())
    return found


def test_every_part_of_a_plan_names_cells_of_its_study() -> None:
    from honestly.studies.study import only, select

    session, make = module("session"), module("make")
    for plan in session.PLANS.values():
        for part in plan:
            study = Study.parse(text_of(part.study))
            assert select(study.entries(), only(part.only, study))
            assert make.STUDIES[part.store] == study.name
    order = [part.only[:2] for part in session.PLANS["cifar"]][:4]
    ours, krum = ("rule=Ours", "alpha=0.5"), ("rule=Krum", "alpha=0.5")
    assert order == [ours, ours, krum, ("rule=Ours", "alpha=1")]


def test_sessions_with_a_time_limit_give_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "tiny.toml"
    study.write_text(STUDY)
    assert honestly(["bench", str(study), "--out", str(tmp_path / "whole"), "--quiet"]) == 0
    session = module("session")
    monkeypatch.setattr(session, "RESULTS", tmp_path / "no-stores-yet")
    parts = (session.Part("tiny", str(study), ("rule=Ours",)), session.Part("tiny", str(study)))
    monkeypatch.setitem(session.PLANS, "tiny", parts)
    monkeypatch.setattr(session, "PART", 2_000)

    # `honestly bench` in this process, whose clock lets two rounds pass in each go
    def bench(words: list[str], check: bool) -> Any:
        at = words.index("--stop-after") + 1
        clock["left"] = 2
        status = honestly([*words[3:at], "1h", *words[at + 1 :]])
        return type("Done", (), {"returncode": status})

    from honestly.studies.limit import OutOfTimeError, TimeLimit

    clock = {"left": 0}

    def check(limit: TimeLimit) -> None:
        if clock["left"] == 0:
            raise OutOfTimeError
        clock["left"] -= 1

    monkeypatch.setattr(TimeLimit, "check", check)
    monkeypatch.setattr(session, "subprocess", SimpleNamespace(run=bench))
    out, goes, status = tmp_path / "out", 0, 75
    while status == 75:
        goes += 1
        assert goes < 20
        # each go has a bare machine: its archive is all that there is of the one before
        words = ["tiny", "--out", str(out), "--work", str(tmp_path / f"machine-{goes}"), "--device", "cpu"]
        status = session.main(words)
        files = sorted(path.name for path in out.iterdir())
        assert files[0] == "tiny.tar.gz.00", "cut into parts"
        assert all(path.stat().st_size <= 2_000 for path in out.iterdir())
    assert status == 0
    assert goes >= 3
    assert numbers(tmp_path / f"machine-{goes}" / "tiny") == numbers(tmp_path / "whole")

    # taken home: the store is packed once, and a second time gives the same bytes
    make = module("make")
    monkeypatch.setattr(make, "STORES", tmp_path / "stores")
    monkeypatch.setattr(make, "BUILD", tmp_path / "build")
    (tmp_path / "stores").mkdir()
    make.pack("tiny", out, [])
    packed = (tmp_path / "stores" / "tiny.tar.gz").read_bytes()
    assert numbers(tmp_path / "build" / "tiny") == numbers(tmp_path / "whole")
    make.pack("tiny", out, [])
    assert (tmp_path / "stores" / "tiny.tar.gz").read_bytes() == packed


def test_a_killed_session_loses_minutes_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "tiny.toml"
    study.write_text(STUDY)
    session = module("session")
    monkeypatch.setattr(session, "RESULTS", tmp_path / "no-stores-yet")
    monkeypatch.setattr(session, "PART", 2_000)
    monkeypatch.setitem(session.PLANS, "tiny", (session.Part("tiny", str(study)),))
    out, work = tmp_path / "out", tmp_path / "work"

    class KilledError(Exception):
        pass

    def bench(words: list[str], check: bool) -> Any:
        assert honestly(words[3:]) == 0
        last = len(packed)
        wait_for(lambda: len(packed) > last + 1)  # the first of these two may have begun before the last round
        raise KilledError

    packed: list[str] = []
    pack = session.pack

    def pack_and_count(name: str, *folders: Path) -> None:
        pack(name, *folders)
        packed.append(name)

    monkeypatch.setattr(session, "pack", pack_and_count)
    monkeypatch.setattr(session, "subprocess", SimpleNamespace(run=bench))
    with pytest.raises(KilledError):
        session.main(["tiny", "--out", str(out), "--work", str(work), "--device", "cpu", "--pack-every", "0.05"])
    assert {path.name for path in out.iterdir()} >= {"tiny.tar.gz.00", "tiny.tar.gz.01"}
    with Store.open(tmp_path / "home") as store:
        session.take_in(store, session.join(out / "tiny.tar.gz"))
    assert numbers(tmp_path / "home") == numbers(work / "tiny")


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


@pytest.mark.slow  # starts processes
def test_runs_of_a_rule_that_changed_are_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tmp_path / "tiny.toml"
    study.write_text(STUDY)
    assert honestly(["bench", str(study), "--out", str(tmp_path / "old"), "--quiet"]) == 0
    (tmp_path / "stores").mkdir()
    assert honestly(["export", "study", str(tmp_path / "old"), "-o", str(tmp_path / "stores" / "tiny.tar.gz")]) == 0
    session = module("session")
    monkeypatch.setattr(session, "RESULTS", tmp_path)
    monkeypatch.setitem(session.PLANS, "tiny", (session.Part("tiny", str(study), ("rule=FedAvg",)),))
    words = ["tiny", "--again", "Ours", "--out", str(tmp_path / "out"), "--device", "cpu", "--work"]
    assert session.main([*words, str(tmp_path / "work")]) == 0
    assert statuses(tmp_path / "work" / "tiny") == {"FedAvg": "done", "Ours": "pending", "warm-up": "done"}
    # at home, what is to be done again does not come back from the stores
    make, archive = module("make"), tmp_path / "stores" / "tiny.tar.gz"
    monkeypatch.setattr(make, "STORES", tmp_path / "stores")
    monkeypatch.setattr(make, "BUILD", tmp_path / "build")
    for again, status in (["Ours"], "pending"), ([], "done"):
        make.unpack("tiny")
        make.pack("tiny", tmp_path / "out", again)
        assert statuses(tmp_path / "build" / "tiny")["Ours"] == status
        shutil.rmtree(tmp_path / "build")
        assert honestly(["export", "study", str(tmp_path / "old"), "-o", str(archive)]) == 0
    # the archive of a go is taken whole
    (tmp_path / "go").mkdir()
    archive.rename(tmp_path / "go" / "tiny.tar.gz")
    assert session.main([*words, str(tmp_path / "elsewhere"), "--from", str(tmp_path / "go")]) == 0
    assert statuses(tmp_path / "elsewhere" / "tiny") == dict.fromkeys(("FedAvg", "Ours", "warm-up"), "done")
