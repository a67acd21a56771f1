"""A submitted rule gains nothing by memory, by looking around or by reading, and cannot hold up the judge."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from honestly.studies.suites.judge import judge
from honestly.studies.suites.sandbox import Sandbox

from .conftest import standing
from .test_suites import TINY

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="questions are answered in forks, limits are Linux's")

RULES = '''
import gc
import inspect
import os
import subprocess
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
import numpy as np
from honestly.rules.rule import Mix, Rule

SEEN = {}

class Equal(Rule):
    summary = "the mean"
    def mix(self, geometry):
        return Mix.of_weights(np.full(geometry.K, 1 / geometry.K))

@dataclass(frozen=True, kw_only=True)
class Remember(Equal):
    """Believes clients that sent the same in an earlier question: lies change, honest updates do not."""
    name = "remember"
    def mix(self, geometry):
        own = [tuple(row) for row in np.einsum("lkk->kl", geometry.layers_about_reference).round(9)]
        for key in own:
            SEEN[key] = SEEN.get(key, 0) + 1
        count = np.array([SEEN[key] for key in own])
        honest = count >= np.median(count)
        return Mix.of_weights(honest / honest.sum())

@dataclass(frozen=True, kw_only=True)
class Ask(Equal):
    """Is not told f, and looks for it in every frame above it."""
    name = "ask"
    def mix(self, geometry):
        known = [frame.frame.f_locals for frame in inspect.stack()]
        if any(values.get("f") for values in known) or any(4 in values.get("arguments", ())[:2] for values in known):
            raise RuntimeError("found f")
        return super().mix(geometry)

@dataclass(frozen=True, kw_only=True)
class Read(Equal):
    name = "read"
    def mix(self, geometry):
        open(Path(__file__).parent / "suites" / "small-1.npz", "rb")

@dataclass(frozen=True, kw_only=True)
class Large(Equal):
    name = "large"
    def mix(self, geometry):
        np.ones(2**30)

@dataclass(frozen=True, kw_only=True)
class Interrupt(Equal):
    """Begins a message to the judge and never ends it."""
    name = "interrupt"
    def mix(self, geometry):
        for thing in gc.get_objects():
            if isinstance(thing, Connection):
                os.write(thing.fileno(), b"....")
        time.sleep(3600)

@dataclass(frozen=True, kw_only=True)
class Helper(Equal):
    """Starts a process, says which, and waits for it."""
    name = "helper"
    def mix(self, geometry):
        helper = subprocess.Popen(["sleep", "3600"])
        Path(__file__).with_name("helper").write_text(str(helper.pid))
        helper.wait()
'''


@on_linux
def test_a_rule_does_not_remember_earlier_questions(home):
    found, mean = standing(home, "Remember"), judge(TINY, ["mean"], folder=home)[0]
    assert (found.failed, found.missed) == (0, 100)
    assert found.mean == pytest.approx(mean.mean), "every question is its first, and it is the mean"


def test_a_rule_that_is_told_nothing_cannot_find_f(home):
    assert standing(home, "Ask").error == ""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Read", "PermissionError: a rule may not read the recordings"),
        pytest.param("Large", "MemoryError", marks=on_linux),
        pytest.param("Interrupt", "raised OSError: handle is closed", marks=on_linux),
    ],
)
def test_what_a_rule_may_not_do_is_a_failure_with_a_name(home, name, message):
    found = standing(home, name, limit=5.0)
    assert message in found.error
    assert found.failed == found.rounds == 5


@on_linux
def test_what_a_rule_started_ends_with_it(home):
    found = standing(home, "Helper", limit=3.0)
    assert "did not answer within 3 s" in found.error
    assert ended(int((home / "helper").read_text()))


@on_linux
def test_a_rule_ends_with_its_judge(home):
    box = Sandbox(f"{home / 'rules.py'}:Helper")
    (home / "helper").unlink(missing_ok=True)
    box._pipe.send(("mix", 5, 0, 0, 1, *EMPTY))
    while not (home / "helper").exists() or not (home / "helper").read_text():
        time.sleep(0.05)
    box._pipe.close()  # as if the judge had been killed
    assert ended(int((home / "helper").read_text()))
    box.close()


EMPTY = (np.zeros((1, 5, 5)), np.zeros((1, 5, 5)), np.ones(1), None, None)


def ended(pid, seconds=10.0):
    """Whether the process ends soon; one that nobody waits for stays as a zombie."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False
