"""The other side of a sandbox, in the process of a stranger's rule: it answers the judge's questions.

Every question is answered in a fork of the process as it was after the file had been loaded, so a rule cannot
remember earlier ones: honest clients send the same in many of them. (Where there is no fork it is trusted not to.)
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

from honestly.result import Float
from honestly.rules.geometry import Coordinates
from honestly.rules.rule import ColumnRule, GramGeometry, Mix, Mixer
from honestly.studies.layers.stand_ins import needs_coordinates
from honestly.studies.specs import Contestant
from honestly.studies.suites.spec import SUITES

#: Bytes that a rule may use.
MEMORY = 4 * 2**30
FORKS = sys.platform == "linux"


def serve(pipe: Connection, spec: str) -> None:
    """Answer requests until the judge closes the connection."""
    os.dup2(2, 1)  # what the rule prints must not mix with the judge's output
    _confine()
    try:
        contestant = Contestant(spec)
        parts = [part for part, _ in contestant.parts]
    except ValueError as error:
        pipe.send_bytes(_packed(refused=str(error)))
        return
    *mixers, rule = parts
    about = {"knows": contestant.knows, "coordinates": needs_coordinates(parts), "mixers": len(mixers)}
    reads = any({"signs", "updates"} & part.needs for part in parts)
    pipe.send_bytes(_packed(**about, reads=reads, reduces=issubclass(rule, ColumnRule)))
    while True:
        try:
            question = pipe.recv()
        except (EOFError, OSError):
            return
        answer = _in_fork(pipe, contestant, question) if FORKS else _respond(contestant, *question)
        with suppress(BrokenPipeError):
            pipe.send_bytes(answer)


def _confine() -> None:
    """Limit the process's memory, keep it off the recordings, and make it the head of a group that ends with it."""
    if hasattr(os, "setsid"):
        os.setsid()
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    recordings = {f"{name}.npz" for name in SUITES}

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and Path(str(arguments[0])).name in recordings:
            raise PermissionError("a rule may not read the recordings that it is judged by")

    sys.addaudithook(watch)


def _in_fork(pipe: Connection, contestant: Contestant, question: tuple[Any, ...]) -> bytes:
    """The answer of a copy of this process, which then ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        pipe.close()
        with os.fdopen(writer, "wb") as file:
            file.write(_respond(contestant, *question))
        os._exit(0)
    os.close(writer)
    parts: list[bytes] = []
    with os.fdopen(reader, "rb", buffering=0) as file:
        while True:
            if pipe in wait([pipe, reader]):  # the judge has nothing to say before the answer: it is gone
                os.killpg(0, signal.SIGKILL)
            if not (part := file.read(2**20)):
                break
            parts.append(part)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:
        os.kill(os.getpid(), -code)
    if code or not parts:
        os._exit(code)
    return b"".join(parts)


def _respond(contestant: Contestant, what: str, K: int, f: int, *arguments: Any) -> bytes:
    """The answer to one question, or what went wrong."""
    try:
        pipeline, count = contestant.build(K=K, f=f, root=None)
        if what == "build":
            return _packed(told=count)
        if what == "reduce":
            rule: Any = pipeline.rule
            first, last = rule.ranks(len(arguments[0]))
            return _packed(values=rule.reduce(arguments[0][first:last], np))
        step, *known = arguments
        return _packed(**_answer(pipeline.steps[step], *known))
    except ValueError as error:
        key = "refused" if what == "build" else "error"
        return _packed(**{key: f"raised {type(error).__name__}: {str(error)[:200]}"})
    except Exception as error:
        return _packed(error=f"raised {type(error).__name__}: {str(error)[:200]}")


def _answer(
    step: Any, repeats: int, layers: Float, about: Float, sizes: Float, updates: Any, signs: Any
) -> dict[str, Any]:
    """A step's answer as arrays."""
    more: dict[str, Any] = {}
    if updates is not None:
        zeros = [np.zeros(part.shape[1]) for part in updates]
        more["mixed_coordinates"] = lambda A: Coordinates(
            [part if A is None else A @ part for part in updates], zeros
        )  # fmt: skip
        more["signs"] = lambda: signs
    mix, times = None, list[float]()
    for _ in range(repeats):
        geometry = GramGeometry.of_layers(
            layers.copy(), has_reference=True, about_reference=about.copy, layer_sizes=sizes, **more
        )
        start = time.process_time()
        mix = step.mix(geometry)
        times.append(time.process_time() - start)
    seconds = min(times)
    if isinstance(step, Mixer):
        return {"matrix": mix, "seconds": seconds}
    if not isinstance(mix, Mix):
        raise TypeError(f"mix returned a {type(mix).__name__}: it must return an honestly.rules.rule.Mix")
    answer: dict[str, Any] = {"matrix": mix.matrix, "honesty": mix.honesty, "by_layer": mix.by_layer}
    if mix.verdicts is not None:
        answer["verdicts"] = np.array([str(getattr(v, "value", v)) for v in mix.verdicts])
    return {**{key: value for key, value in answer.items() if value is not None}, "seconds": seconds}


def _packed(**values: Any) -> bytes:
    """Arrays, never pickled: the judge does not run what a stranger's process sends."""
    out = io.BytesIO()
    arrays = {key: np.asarray(value) for key, value in values.items()}
    for key, value in arrays.items():
        if value.dtype == object:
            raise TypeError(f"returned {key} that are not numbers: {str(value)[:80]}")
    np.savez(out, allow_pickle=False, **arrays)
    return out.getvalue()
