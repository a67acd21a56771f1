"""A server that runs for months: kills, full disks, nodes that come and go, clock jumps, two servers on one folder."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import honestly as hn
from honestly.federation import Referee, Reply
from honestly.federation.audit import audit
from honestly.federation.folders import FolderInUseError

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def replies(K: int = 6, seed: int = 0, first: int = 0) -> list[Reply]:
    rng = np.random.default_rng(seed)
    return [Reply(first + k, update={"w": 1 + 0.1 * rng.normal(size=50)}) for k in range(K)]


# killed


def serve(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, str(Path(__file__).with_name("server_to_kill.py")), str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)


def kill_again_and_again(folder: Path, times: int) -> None:
    chance = random.Random(times)
    for _ in range(times):
        server = serve(folder)
        assert server.stdout is not None
        for _ in range(chance.randint(1, 4)):
            line = server.stdout.readline()
            assert line, server.stderr.read()  # type: ignore[union-attr]
        time.sleep(chance.random() * 0.02)  # somewhere in the middle of a round
        server.send_signal(signal.SIGKILL)
        server.communicate(timeout=60)
    found = audit(folder / "history")
    assert found.broken == ""
    assert found.sound
    assert len(found.files) == times
    memory = hn.Memory.from_dict(json.loads((folder / "history" / "memory.json").read_text()))
    suspicion = memory.prior([10, 11, 0])
    assert max(suspicion[:2]) < -1 < suspicion[2]
    model, version = json.loads((folder / "model.json").read_text())
    assert model == version  # every average was added once
    buffer = hn.Buffer(3, "mean", discount=0, folder=folder / "buffer", version=version)
    assert buffer.version == version
    Referee("mean", history=folder / "history")
    assert not [path for part in ("history", "buffer") for path in (folder / part).glob(".*")]  # half written files
    out = None
    for k in range(3):
        out = buffer.add(k, np.array([1.0, k / 3]), version=version) or out
    assert out is not None
    assert out.value[0] == 1.0


def test_a_killed_server_resumes_with_history_memory_and_buffer(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_server_that_is_killed_repeatedly(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path, 30)


# a full disk


class FullDisk:
    """A disk that allows a number of writes, and then fails for another number of writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, passing: int, failing: int) -> None:
        self.left, self.failing, self.sync = passing, failing, os.fsync
        monkeypatch.setattr(os, "fsync", self)

    def __call__(self, descriptor: int) -> None:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a folder's names need no room
            pass
        elif self.left > 0:
            self.left -= 1
        elif self.failing > 0:
            self.failing -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        self.sync(descriptor)


@pytest.mark.parametrize("passing", range(9))
def test_a_full_disk_loses_the_files_of_a_round_but_never_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passing: int
) -> None:
    """Every round writes three files; the disk is full from one of them on, for a while."""
    said: list[str] = []
    rule = hn.Bayesian(memory=hn.Memory())
    referee = Referee(rule, history=tmp_path, log=lambda level, text: said.append(text))
    disk = FullDisk(monkeypatch, passing, 2)
    for number in range(1, 7):
        value, record = referee.judge(number, replies(seed=number))
        assert value is not None
        assert not record.kept
        if (tmp_path / "rounds.jsonl").exists():  # whatever is there is whole
            assert audit(tmp_path).sound
    assert disk.failing == 0
    assert sum("could not be written" in text for text in said) == 2
    assert audit(tmp_path).rounds == 6
    assert len((tmp_path / "rounds.csv").read_text().splitlines()) == 1 + 6 * 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["memory.json", "rounds.csv", "rounds.jsonl"]


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
import honestly as hn
from honestly.federation import Referee, Reply
resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))  # the system itself refuses longer files
folder = Path(sys.argv[1])
referee = Referee("mean", history=folder / "history", log=lambda level, text: print(text))
for number in range(1, 13):
    value, _ = referee.judge(number, [Reply(k, update={"w": np.ones(5) * k}) for k in range(6)])
    assert value is not None
buffer = hn.Buffer(3, "mean", folder=folder / "buffer")
buffer.add("small", np.ones(10), version=0)
try:
    buffer.add("large", np.ones(2000), version=0)
except OSError as error:
    print("refused:", error)
assert buffer.clients == ("small",)
"""


def test_a_file_size_limit_leaves_only_complete_files(tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], env=ENVIRONMENT, text=True, capture_output=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert "the history could not be written" in run.stdout
    assert "refused:" in run.stdout
    found = audit(tmp_path / "history")
    assert found.sound
    assert 2 <= found.rounds < 12
    assert hn.Buffer(3, "mean", folder=tmp_path / "buffer").clients == ("small",)
    assert not list(tmp_path.rglob(".*"))


# many nodes


def flapping(nodes: int, flaps: int, rounds: int, folder: Path) -> Referee:
    """In each round, a fifth of the nodes is missing: silent, crashed, or too late for the round."""
    referee = Referee("bayesian", history=folder, log=lambda level, text: None)
    chance = random.Random(0)
    for number in range(1, rounds + 1):
        away = set(chance.sample(range(nodes), flaps))
        sent = [r for r in replies(nodes, seed=number) if r.client not in away]
        some = sorted(away)
        crashed = [Reply(k, fault="error 1: gone", absent=True) for k in some[: flaps // 2]]
        late = [Reply(nodes + k, update={"w": np.ones(50)}) for k in some[: flaps // 10]]  # under a new id
        value, record = referee.judge(number, [*sent, *crashed, *late], asked=range(nodes))
        assert value is not None
        assert set(record.excluded) == away | {r.client for r in late}
        assert np.abs(value["w"] - 1).max() < 0.1
        assert not record.attention, record.status
    return referee


def test_a_fifth_of_the_nodes_flapping(tmp_path: Path) -> None:
    flapping(60, 12, 5, tmp_path)
    assert audit(tmp_path).rounds == 5


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_nodes_two_hundred_of_them_flapping(tmp_path: Path) -> None:
    referee = flapping(1000, 200, 5, tmp_path)
    assert audit(tmp_path).sound
    assert sum(len(record.accused) for record in referee.history) <= 0.01 * 5 * 800


# wrong voices


def test_a_node_that_answers_twice_is_excluded() -> None:
    sent = replies(8)
    liar = Reply(3, update={"w": np.full(50, -9.0)})
    value, record = Referee("bayesian").judge(1, [*sent, liar], asked=range(8))
    assert record.excluded == {3: "sent 2 replies in one round"}
    assert value is not None
    assert np.abs(value["w"] - 1).max() < 0.4


@pytest.mark.parametrize("doubt", ["accept", "keep"])
def test_uninvited_replies_never_stop_a_round(doubt: Any) -> None:
    uninvited = [Reply(100 + k, update={"w": np.full(50, -9.0)}) for k in range(20)]
    value, record = Referee("bayesian", doubt=doubt).judge(1, [*replies(5), *uninvited], asked=range(5))
    assert set(record.excluded) == set(range(100, 120))
    assert not record.attention
    assert value is not None
    assert np.abs(value["w"] - 1).max() < 0.4


def test_a_reply_for_a_round_that_is_over_does_not_count() -> None:
    referee = Referee("bayesian")
    referee.judge(1, replies(8)[:7], asked=range(8))
    value, record = referee.judge(2, replies(9, seed=2), asked=[k for k in range(9) if k != 7])
    assert record.excluded == {7: "was not asked in this round"}
    assert value is not None


def test_each_forged_id_silences_only_one_client() -> None:
    """The framework must authenticate ids. If it does not, each lie silences one honest client and gains no vote."""
    sent = replies(30)
    stolen = [Reply(k, update={"w": np.full(50, -9.0)}) for k in range(10)]
    value, record = Referee("bayesian").judge(1, [*sent, *stolen], asked=range(30))
    assert set(record.excluded) == set(range(10))
    assert value is not None
    assert np.abs(value["w"] - 1).max() < 0.2


# clocks


@pytest.mark.parametrize("jump", [-1e9, 1e9])
def test_clocks_that_jump_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float) -> None:
    def run(folder: Path) -> tuple[Referee, list[Any]]:
        referee = Referee("bayesian", history=folder / "h")
        buffer = hn.Buffer(3, folder=folder / "b")
        values = []
        for number in range(1, 5):
            values.append(referee.judge(number, replies(seed=number))[0]["w"])
            out = buffer.add(number, np.full(4, float(number)), version=buffer.version)
            values.append(None if out is None else out.value)
        return referee, values

    _, steady = run(tmp_path / "steady")
    real, calls = time.time, iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: real() + jump * (next(calls) % 2))
    referee, jumped = run(tmp_path / "jumped")
    for one, other in zip(steady, jumped, strict=True):
        assert np.array_equal(one, other) if one is not None else other is None
    assert all(0 <= record.seconds < 60 for record in referee.history)
    assert audit(tmp_path / "jumped" / "h").sound


# two servers


HOLD = """
import sys
from honestly.federation import Referee
referee = Referee("mean", history=sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_second_server_on_a_history_gets_an_error_while_the_first_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    first = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "ready\n"
        with pytest.raises(FolderInUseError, match="another server writes to this folder"):
            Referee("mean", history=tmp_path)
        with pytest.raises(FolderInUseError):
            hn.Buffer(3, history=tmp_path)
    finally:
        first.kill()
        first.communicate(timeout=60)
    referee = Referee("mean", history=tmp_path)
    Referee("mean", history=tmp_path)  # the same process may
    referee.judge(1, replies())
    assert audit(tmp_path).sound


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_outlives_its_server_does_not_hold_the_folder(tmp_path: Path) -> None:
    fork = "import os, time\nif os.fork() == 0:\n    print('child', flush=True)\n    time.sleep(60)\n    os._exit(0)\n"
    code = HOLD.replace("print(", fork + "print(")
    first = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=ENVIRONMENT, start_new_session=True,
    )  # fmt: skip
    assert first.stdout is not None
    words = ""  # of two processes, in any order and perhaps on one line
    while "ready" not in words or "child" not in words:
        line = first.stdout.readline()
        assert line, words
        words += line
    try:
        first.kill()
        first.wait(timeout=60)
        Referee("mean", history=tmp_path)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.stdout.close()
        first.stdin.close()  # type: ignore[union-attr]
