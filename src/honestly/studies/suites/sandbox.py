"""A separate process for a stranger's rule: it gets inner products in a random order and returns weights.

Whatever the rule does there, it cannot see who attacks, change what it is measured by, remember earlier questions, or
stop the judge: an answer that takes too long, a crash and an exit are failures with a name. It does not protect the
machine: the process has all rights of its caller. What happens in the process is in `serve`.
"""

from __future__ import annotations

import io
import os
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from honestly.engine import Pipeline
from honestly.result import Float, Status, Verdict
from honestly.rules.rule import ColumnRule, Geometry, GramGeometry, Mix, Mixer, Rule
from honestly.runs.npz import read_npz
from honestly.studies.suites.serve import serve

#: Seconds for one answer, unless the caller says otherwise.
LIMIT = 10.0
#: Seconds for the file to be loaded.
START = 60.0
MOST_BYTES = 2**28

Reply = dict[str, npt.NDArray[Any]]


class RuleError(Exception):
    """A rule raised, or returned something that no server can use; the message says which and what."""


class RuleStoppedError(RuleError):
    """A rule did not answer in time or ended its process: it is not asked again."""


class Sandbox:
    """A process that holds the rule of a word such as `file.py:Rule`.

    Args:
        spec: the word; naming a file runs it, in the new process.
        limit: seconds for one answer.

    Raises ValueError if the word stands for no rule.
    """

    def __init__(self, spec: str, limit: float = LIMIT) -> None:
        self.spec, self.limit = spec, limit
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, spec), daemon=True)
        self._process.start()
        other.close()
        try:
            about = self._reply(START)
        except RuleError as error:
            raise ValueError(f"rule '{spec}' cannot be loaded: it {error}") from None
        self.knows = str(about["knows"])
        self.coordinates = bool(about["coordinates"])
        self.reduces = bool(about["reduces"])
        self.reads = bool(about["reads"])
        self.mixers = int(about["mixers"])
        self.seconds = 0.0  # processor time of all answers, as the process says

    def ask(self, what: str, *arguments: Any, repeats: int = 1) -> Reply:
        """The answer to a question; raises RuleError if there is none, ValueError if the settings do not fit."""
        try:
            self._pipe.send((what, *arguments))
        except OSError:
            raise self._stop_error() from None
        reply = self._reply(self.limit * repeats)
        if "seconds" in reply:
            self.seconds += max(0.0, float(numbers("seconds", reply["seconds"], ())))
        return reply

    def close(self) -> None:
        """End the process, and those that it started."""
        self._pipe.close()
        if hasattr(os, "killpg") and self._process.pid is not None:
            with suppress(ProcessLookupError, PermissionError):  # it ended, or has no group of its own yet
                os.killpg(self._process.pid, signal.SIGKILL)
        if self._process.is_alive():
            self._process.kill()
        self._process.join()

    def _reply(self, limit: float) -> Reply:
        try:
            if not self._pipe.poll(limit):
                self.close()
                raise RuleStoppedError(f"did not answer within {limit:g} s, and was stopped")
            data = self._pipe.recv_bytes(MOST_BYTES)
        except (EOFError, OSError):
            raise self._stop_error() from None
        try:
            arrays = read_npz(io.BytesIO(data))
        except (ValueError, OSError):
            self.close()
            raise RuleStoppedError("wrote something other than its answer to the judge, and was stopped") from None
        if "refused" in arrays:
            raise ValueError(str(arrays["refused"]))
        if "error" in arrays:
            raise RuleError(str(arrays["error"]))
        return arrays

    def _stop_error(self) -> RuleStoppedError:
        self._process.join(1.0)
        code = self._process.exitcode
        self.close()
        return RuleStoppedError(f"ended its process (exit code {code}) instead of answering")


_open: dict[tuple[str, float], Sandbox] = {}


def sandbox(spec: str, limit: float = LIMIT) -> Sandbox:
    """The process for this word, started on first use."""
    if (spec, limit) not in _open:
        _open[spec, limit] = Sandbox(spec, limit)
    return _open[spec, limit]


def close(spec: str) -> None:
    """End the processes of this word."""
    for key in [key for key in _open if key[0] == spec]:
        _open.pop(key).close()


@dataclass(frozen=True)
class RemoteContestant:
    """A rule in a sandbox, with the interface of a `Contestant` as far as a judge needs it."""

    spec: str
    limit: float = LIMIT

    @property
    def knows(self) -> str:
        """What the rule is told that a server rarely knows."""
        return sandbox(self.spec, self.limit).knows

    @property
    def coordinates(self) -> bool:
        """Whether it looks at more than inner products."""
        return sandbox(self.spec, self.limit).coordinates

    def clock(self) -> float:
        """Processor time of all answers so far."""
        return sandbox(self.spec, self.limit).seconds

    def build(self, *, K: int, f: int, root: Any, repeats: int = 1) -> tuple[Pipeline, int]:
        """Mixers and rule, and the f that they were told; raises ValueError if they do not accept K clients.

        With ``repeats`` every answer is computed that many times, and the fastest time counts.
        """
        box = sandbox(self.spec, self.limit)
        # a rule that is told nothing must not find f in its process
        count = int(box.ask("build", K, f if "f" in box.knows.split(", ") else 0)["told"])
        place = Place(box, K, count, repeats)
        rule = (RemoteColumns if box.reduces else RemoteRule)(place=place, step=box.mixers)
        return Pipeline(tuple(RemoteMixer(place=place, step=step) for step in range(box.mixers)), rule), count


@dataclass(frozen=True)
class Place:
    """Where a rule runs, the number of clients and the f that it was built with, and how often it is timed."""

    box: Sandbox = field(repr=False)
    clients: int
    f: int
    repeats: int


@dataclass(frozen=True, kw_only=True)
class _Remote:
    place: Place
    step: int

    def answer(self, geometry: Geometry) -> Reply:
        """What the step says of these clients."""
        box, repeats = self.place.box, self.place.repeats
        updates = list(geometry.coordinates().updates) if box.reads else None
        signs = geometry.sign_counts() if box.reads else None
        assert isinstance(geometry, GramGeometry)
        about = geometry.layers_about_reference
        known = (geometry.layers, about, geometry.layer_sizes, updates, signs)
        reply = box.ask("mix", self.place.clients, self.place.f, self.step, repeats, *known, repeats=repeats)
        if "matrix" not in reply:
            raise RuleError("sent an answer without a matrix")
        return reply


@dataclass(frozen=True, kw_only=True)
class RemoteMixer(_Remote, Mixer):
    """A mixer in a sandbox."""

    name: ClassVar[str] = "remote_mixer"
    summary: ClassVar[str] = "a mixer in another process"

    def mix(self, geometry: Geometry) -> Float:
        """The matrix that it answers with."""
        return numbers("matrix", self.answer(geometry)["matrix"], (None, geometry.K))


@dataclass(frozen=True, kw_only=True)
class RemoteRule(_Remote, Rule):
    """A rule in a sandbox."""

    name: ClassVar[str] = "remote"
    summary: ClassVar[str] = "a rule in another process"

    def mix(self, geometry: Geometry) -> Mix:
        """Its answer, unchecked."""
        return _mix(self.answer(geometry))


@dataclass(frozen=True, kw_only=True)
class RemoteColumns(_Remote, ColumnRule):
    """A coordinate-wise rule in a sandbox."""

    name: ClassVar[str] = "remote_columns"
    summary: ClassVar[str] = "a coordinate-wise rule in another process"
    gram_needed: ClassVar[bool] = True

    def mix(self, geometry: Geometry) -> Mix:
        """Its answer, unchecked."""
        return _mix(self.answer(geometry))

    def reduce(self, ranked: Any, xp: Any) -> Any:
        """One value per column; the process picks the ranks that it reads."""
        reply = self.place.box.ask("reduce", self.place.clients, self.place.f, ranked)
        return numbers("values", reply.get("values"), (ranked.shape[1],))


def _mix(reply: Reply) -> Mix:
    verdicts = reply.get("verdicts")
    return Mix(
        matrix=reply["matrix"],
        honesty=reply.get("honesty"),
        by_layer=reply.get("by_layer"),
        verdicts=None if verdicts is None else [_verdict(word) for word in verdicts.tolist()],
        status=Status.CLOSED_FORM,
    )


def _verdict(word: Any) -> Verdict:
    try:
        return Verdict(word)
    except ValueError:
        raise RuleError(f"returned the verdict {str(word)[:40]!r}: one of {', '.join(Verdict)}") from None


def numbers(what: str, value: Any, shape: tuple[int | None, ...]) -> Float:
    """Finite numbers of a shape, in which None stands for any length; raises RuleError."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise RuleError(f"returned {what} that are not numbers: {str(value)[:80]}") from None
    if len(array.shape) != len(shape) or any(n not in (None, m) for n, m in zip(shape, array.shape, strict=True)):
        wanted = str(shape).replace("None", "any")
        raise RuleError(f"returned {what} of shape {array.shape}: must be {wanted}")
    if not np.isfinite(array).all():
        raise RuleError(f"returned {what} with NaN or infinity")
    return array
