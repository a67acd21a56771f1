"""A run that was killed, stopped or damaged resumes and ends with the same bytes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from honestly.federation.npy import write_npy
from honestly.runs.database import StoreError
from honestly.runs.reader import read
from honestly.runs.record import RoundRecord
from honestly.runs.states import MAGIC, pack, unpack
from honestly.runs.writing import write_file
from honestly.sim import checkpoint
from honestly.sim.checkpoint import open_folder, read_state
from honestly.sim.experiment import Experiment, ExperimentError
from honestly.sim.rounds import Federation, State
from honestly.sim.run import run

# everything that is random takes part: sampling, drop-out, a dynamic adversary, noise, a rule of many steps
SETTINGS: dict[str, Any] = {
    "clients": 10, "rounds": 6, "epochs": 1, "model": "mlp", "rule": "geometric_median", "attack": "random",
    "malicious": 4, "dynamic": True, "participation": 0.9, "dropout": 0.1, "seed": 7,
}  # fmt: skip
E = Experiment.of(SETTINGS)
COMMAND = """
import sys, json
from pathlib import Path
import torch
torch.set_num_threads(1)
from honestly.sim.experiment import Experiment
from honestly.sim.run import run
def show(record):
    print(record.numbers["round"], flush=True)
    sys.stdin.readline()  # the next round begins when it is told to
run(Experiment.of(json.loads(sys.argv[1])), Path(sys.argv[2]), on_round=show)
"""


def bytes_of(folder: Path) -> bytes:
    return (folder / "rounds.jsonl").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert run(E, folder).finished
    return folder


def start(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", COMMAND, json.dumps(SETTINGS), str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)


def test_a_run_killed_at_any_moment_resumes_to_the_same_bytes(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "killed"
    rng = np.random.default_rng(0)
    for kill in range(2):
        with start(folder) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            for _ in range(2):  # let it finish two rounds, then kill it somewhere in the next one
                process.stdout.readline()
                process.stdin.write("\n")
            time.sleep(float(rng.uniform(0, 0.1)))
            process.send_signal(signal.SIGKILL)
        assert 2 * (kill + 1) <= len(bytes_of(folder).splitlines()) <= 3 * (kill + 1)
    outcome = run(E, folder)
    assert outcome.finished
    assert outcome.resumed_at >= 1
    assert bytes_of(folder) == bytes_of(whole)
    assert read_state(folder / "state-6.bin", Federation(E).start()).round == 6


def test_ctrl_c_ends_after_the_round_and_the_run_can_resume(tmp_path: Path, whole: Path) -> None:
    folder = tmp_path / "stopped"
    outcome = run(E, folder, on_round=lambda r: os.kill(os.getpid(), signal.SIGINT) if r.state.round == 2 else None)
    assert not outcome.finished
    assert len(outcome.records) in (2, 3)
    again = run(E, folder)
    assert again.finished
    assert again.resumed_at == len(outcome.records)
    assert bytes_of(folder) == bytes_of(whole)


def stopped(folder: Path, rounds: int) -> Path:
    """A run that was stopped after some rounds."""
    for n in range(1, rounds + 1):
        outcome = run(E, folder, on_round=lambda r: os.kill(os.getpid(), signal.SIGINT))
        assert len(outcome.records) == n
    return folder


@pytest.mark.parametrize("harm", ["cut", "flip", "empty"])
def test_a_damaged_state_is_reported_and_the_previous_one_used(tmp_path: Path, whole: Path, harm: str) -> None:
    folder = stopped(tmp_path / "run", 3)
    latest = max(folder.glob("state-*.bin"), key=lambda p: int(p.stem[6:]))
    number = int(latest.stem[6:])
    raw = bytearray(latest.read_bytes())
    raw[len(raw) // 2] ^= 1
    latest.write_bytes({"cut": bytes(raw[: len(raw) // 2]), "flip": bytes(raw), "empty": b""}[harm])
    warnings: list[str] = []
    outcome = run(E, folder, on_warning=warnings.append)
    assert len(warnings) == 1
    assert latest.name in warnings[0]
    assert "damaged" in warnings[0]
    assert outcome.resumed_at == number - 1
    assert bytes_of(folder) == bytes_of(whole)


def test_a_run_whose_states_are_all_damaged_starts_again(tmp_path: Path, whole: Path) -> None:
    folder = stopped(tmp_path / "run", 2)
    for state in folder.glob("state-*.bin"):
        state.write_bytes(b"nothing")
    outcome = run(E, folder)
    assert outcome.resumed_at == 0
    assert bytes_of(folder) == bytes_of(whole)


STRANGE: dict[str, Any] = {
    "nothing": {},
    "another round": {"round": np.array(-1)},
    "no round": {"round": np.array([1, 2])},
    "no model": {"theta": np.array("text")},
    "no memory": {"memory": np.array(3)},
    "a function": {"memory": np.array(json.dumps([{"class": ["honestly.rules.memory", "number"], "fields": {}}]))},
    "no class": {"memory": np.array(json.dumps([{"class": ["honestly.rules.none", "Rule"], "fields": {}}]))},
    "no settings": {"memory": np.array(json.dumps([{"class": ["honestly.rules.krum", "Krum"], "fields": {"g": 1}}]))},
}


@pytest.mark.parametrize("wrong", STRANGE)
def test_a_strangers_state_with_the_right_checksum_is_not_used(tmp_path: Path, whole: Path, wrong: str) -> None:
    folder = stopped(tmp_path / "run", 3)
    path = folder / "state-3.bin"
    path.write_bytes(pack({**unpack(path), **STRANGE[wrong]} if STRANGE[wrong] else {}))
    warnings: list[str] = []
    outcome = run(E, folder, on_warning=warnings.append)
    assert [f"{path} is damaged" in text for text in warnings] == [True]
    assert outcome.resumed_at == 2
    assert bytes_of(folder) == bytes_of(whole)


@pytest.mark.parametrize("body", [b"PK\x03\x04 and nothing else", write_npy(np.ones(3))])
def test_a_state_that_is_no_archive_is_damaged(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "state-1.bin"
    path.write_bytes(MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    with pytest.raises(ValueError, match=r"not an \.npz file"):
        unpack(path)


def test_truncated_records_are_computed_again(tmp_path: Path, whole: Path) -> None:
    folder = stopped(tmp_path / "run", 3)
    text = bytes_of(folder)
    (folder / "rounds.jsonl").write_bytes(text[:-10])
    run(E, folder)
    assert bytes_of(folder) == bytes_of(whole)


def test_a_finished_run_is_not_repeated_and_can_be_extended(whole: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(whole, folder)
    seen: list[int] = []
    assert run(E, folder, on_round=lambda r: seen.append(r.state.round)).finished
    assert seen == []
    longer = E.model_copy(update={"rounds": 7})
    assert run(longer, folder, on_round=lambda r: seen.append(r.state.round)).finished
    assert seen == [7]
    assert bytes_of(folder).startswith(bytes_of(whole))


@pytest.mark.parametrize("rounds", [1, 4])
def test_an_extended_run_is_the_longer_run(tmp_path: Path, rounds: int) -> None:
    """The last round of the shorter run was evaluated because it was the last."""
    long = Experiment.of({**SETTINGS, "evaluate_every": 3})
    run(long.model_copy(update={"rounds": rounds}), tmp_path / "extended")
    warnings: list[str] = []
    assert run(long, tmp_path / "extended", on_warning=warnings.append).resumed_at == rounds - 1
    assert not warnings
    run(long, tmp_path / "whole")
    assert bytes_of(tmp_path / "extended") == bytes_of(tmp_path / "whole")


def test_a_longer_run_is_not_accepted_as_a_shorter_one(whole: Path) -> None:
    before = (whole / "experiment.json").read_bytes()
    with pytest.raises(ExperimentError, match=r"holds 6 rounds of this experiment, more than rounds = 4: .*--restart"):
        run(E.model_copy(update={"rounds": 4}), whole)
    assert (whole / "experiment.json").read_bytes() == before


def test_an_invalid_experiment_leaves_the_folder_free(tmp_path: Path) -> None:
    wrong = Experiment.of({**SETTINGS, "model": "nowhere:model"})
    with pytest.raises(ValueError, match="cannot be loaded"):
        run(wrong, tmp_path)
    assert run(E.model_copy(update={"rounds": 1}), tmp_path).finished


def test_another_experiment_in_the_folder_is_refused(whole: Path) -> None:
    other = Experiment.of({**SETTINGS, "seed": 8, "alpha": 1.0})
    with pytest.raises(ExperimentError, match=r"alpha = 0.5 there, 1.0 now, seed = 7 there, 8 now.*--restart"):
        run(other, whole)


@pytest.mark.parametrize("description", [None, "{", "{}"])
def test_rounds_of_an_unknown_experiment_are_neither_continued_nor_deleted(
    whole: Path, tmp_path: Path, description: str | None
) -> None:
    """Of a run whose description is lost, or of a federation's history: this experiment may be another one."""
    folder = tmp_path / "unknown"
    shutil.copytree(whole, folder)
    (folder / "experiment.json").unlink()
    if description is not None:
        (folder / "experiment.json").write_text(description)
    with pytest.raises(ExperimentError, match=r"holds 6 rounds, but no experiment\.json .*--restart"):
        run(Experiment.of(SETTINGS | {"seed": 8}), folder)
    assert bytes_of(folder) == bytes_of(whole)
    run(E, folder, restart=True)
    assert bytes_of(folder) == bytes_of(whole)


def test_restart_deletes_the_old_run(whole: Path, tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 2)
    other = Experiment.of({**SETTINGS, "seed": 8, "rounds": 1})
    assert run(other, folder, restart=True).resumed_at == 0
    assert len(bytes_of(folder).splitlines()) == 1
    assert not (folder / "state-2.bin").exists()


def test_restart_deletes_nothing_if_the_new_run_cannot_begin(tmp_path: Path) -> None:
    folder = stopped(tmp_path / "run", 2)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match="batch_norm_guard judges clients by BatchNorm's running statistics"):
        run(Experiment.of({**SETTINGS, "rule": "batch_norm_guard"}), folder, restart=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_full_disk_is_reported_and_the_run_can_resume(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "full"
    calls = 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 13:  # every other call is for the folder, whose failure is no loss
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StoreError, match=r"No space left on device.*same command again"):
            run(E, folder)
    assert not [p for p in folder.iterdir() if p.name.startswith(".")]  # no half-written files left behind
    run(E, folder)
    assert bytes_of(folder) == bytes_of(whole)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file: choose another folder with --out"):
        open_folder(tmp_path / "file", E, warn=print)
    with pytest.raises(StoreError, match=r"cannot write /proc/.*"):
        write_file(Path("/proc/nothing.bin"), b"x")


@pytest.mark.parametrize(
    "choice",
    [
        {"pre": [{"name": "bucketing", "size": 2}], "rule": "median"},
        {"rule": "foolsgold"},
        {"rule": {"name": "bayesian", "memory": 0.8}},
    ],
)
def test_a_rule_with_a_memory_resumes_with_it(tmp_path: Path, choice: dict[str, Any]) -> None:
    e = Experiment.of({**SETTINGS, **choice})
    run(e, tmp_path / "a")
    run(e, tmp_path / "b", on_round=lambda r: os.kill(os.getpid(), signal.SIGINT) if r.state.round == 3 else None)
    run(e, tmp_path / "b")
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_the_figure_and_the_report_are_drawn(whole: Path, tmp_path: Path) -> None:
    from honestly.show.figure import run_figure, save
    from honestly.show.maps import attack_grid, belief_grid
    from honestly.show.run_page import RunView, page

    records = read(json.loads(line) for line in bytes_of(whole).splitlines()).records
    grid = attack_grid(records, 10)
    assert grid.shape == (10, 6)
    for t, r in enumerate(records):
        assert np.flatnonzero(grid[:, t] == 1).tolist() == r.attacked
        assert np.flatnonzero(~np.isnan(grid[:, t])).tolist() == r.participants
    belief = belief_grid(records, 10)
    assert belief is not None
    assert belief[1] == "weights"
    save(run_figure(records, clients=10, rule="mean", attack="sign_flip"), tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    text = page("a <title>", [RunView.of("one & two", E, records)])
    assert "a &lt;title&gt;" in text
    assert "one &amp; two" in text
    for r in records:
        for k in r.attacked:
            assert f"<title>client {k}, round" in text
    assert "://" not in text  # nothing is loaded from elsewhere


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [1, 2, 3, 4], [5, 6, 9, 9]])
def test_the_curve_stands_below_the_columns_of_the_map(numbers: list[int]) -> None:
    from honestly.show.figure import run_figure

    records = [RoundRecord(round=n, accuracy=0.1 * i, honesty=[1.0, 0.0]) for i, n in enumerate(numbers)]
    heat, curve = run_figure(records, clients=2).axes
    left, right, _, _ = heat.images[0].get_extent()
    columns = left + 0.5 + np.arange(4) * (right - left) / 4
    np.testing.assert_allclose(curve.lines[0].get_xdata(), columns)
    assert columns[0] == numbers[0]
    run_figure([RoundRecord(round=1)], clients=0, attack="none")  # nobody took part


def test_a_run_may_start_from_a_model_trained_without_attack(tmp_path: Path) -> None:
    cold = Experiment.of(SETTINGS)
    warm = Experiment.of({**SETTINGS, "warm_up": 3})
    assert "warm_up" not in cold.canonical, "ids of older experiments would change"
    assert warm.id != cold.id
    before = warm.before
    assert before is not None
    assert (before.attack.name, before.rule.name, before.rounds, before.warm_up) == ("none", "mean", 3, 0)
    other = Experiment.of({**SETTINGS, "warm_up": 3, "rule": "median", "attack": "sign_flip"}).before
    assert other == before, "rules and attacks share their warm-up"

    first = run(warm, tmp_path / "a", warm_up=tmp_path / "shared")
    alone = run(warm, tmp_path / "b")
    assert first.records == alone.records == run(warm).records
    assert run(before, tmp_path / "again").finished
    assert bytes_of(tmp_path / "shared") == bytes_of(tmp_path / "again") == bytes_of(tmp_path / "b" / "warm-up")
    # the first round starts where the warm-up ended
    trained = checkpoint.final_model(tmp_path / "shared", 3, Federation(warm).start().model)
    state = Federation(warm).start()
    expected = next(iter(Federation(warm).rounds(State(0, trained, state.pipeline))))
    assert first.records[0] == expected.numbers
    assert first.records[0] != run(cold).records[0]


def test_a_missing_or_damaged_start_is_named(tmp_path: Path) -> None:
    like = Federation(E).start().model
    with pytest.raises(StoreError, match=r"state-3\.bin is missing"):
        checkpoint.final_model(tmp_path, 3, like)
    (tmp_path / "state-3.bin").write_bytes(b"nothing")
    with pytest.raises(StoreError, match="checksum"):
        checkpoint.final_model(tmp_path, 3, like)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"malicious": 0, "dynamic": False}, "attack=random, but nobody attacks"),
        ({"attack": "none"}, "malicious=4, but attack=none"),
    ],
)
def test_an_attack_without_attackers_and_the_reverse_warn_in_python(settings: dict[str, Any], message: str) -> None:
    with pytest.warns(UserWarning, match=message):
        run(Experiment.of({**SETTINGS, "rounds": 1, **settings}))


def test_a_damaged_description_is_not_said_to_be_written_again(tmp_path: Path, whole: Path) -> None:
    folder = stopped(tmp_path / "run", 3)
    (folder / "experiment.json").write_text("{")
    warnings: list[str] = []
    with pytest.raises(ExperimentError, match=r"holds 3 rounds, but no experiment.json that says which experiment"):
        run(E, folder, on_warning=warnings.append)
    assert warnings == [f"{folder / 'experiment.json'} is damaged"]
