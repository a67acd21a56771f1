"""The other side of a sandbox, in the process of a stranger's rule: it answers the judge's questions."""

from __future__ import annotations

import io
import os
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from honestly.result import Float
from honestly.rules.geometry import Coordinates
from honestly.rules.rule import ColumnRule, GramGeometry, Mix, Mixer
from honestly.studies.layers.stand_ins import needs_coordinates
from honestly.studies.specs import Contestant


def serve(pipe: Connection, spec: str) -> None:
    """Answer requests until the judge closes the connection."""
    os.dup2(2, 1)  # what the rule prints must not mix with the judge's output
    try:
        contestant = Contestant(spec)
        parts = [part for part, _ in contestant.parts]
    except ValueError as error:
        _send(pipe, refused=str(error))
        return
    *mixers, rule = parts
    about = {"knows": contestant.knows, "coordinates": needs_coordinates(parts), "mixers": len(mixers)}
    reads = any({"signs", "updates"} & part.needs for part in parts)
    _send(pipe, **about, reads=reads, reduces=issubclass(rule, ColumnRule))
    steps: tuple[Any, ...] = ()
    while True:
        try:
            what, *arguments = pipe.recv()
        except EOFError:
            return
        try:
            if what == "build":
                K, f = arguments
                pipeline, count = contestant.build(K=K, f=f, root=None)
                steps = pipeline.steps
                _send(pipe, told=count)
            elif what == "reduce":
                first, last = steps[-1].ranks(len(arguments[0]))
                _send(pipe, values=steps[-1].reduce(arguments[0][first:last], np))
            else:
                _send(pipe, **_answer(steps[arguments[0]], *arguments[1:]))
        except ValueError as error:
            key = "refused" if what == "build" else "error"
            _send(pipe, **{key: f"raised {type(error).__name__}: {str(error)[:200]}"})
        except Exception as error:
            _send(pipe, error=f"raised {type(error).__name__}: {str(error)[:200]}")


def _answer(step: Any, layers: Float, about: Float, sizes: Float, updates: Any, signs: Any) -> dict[str, Any]:
    """A step's answer as arrays."""
    more: dict[str, Any] = {}
    if updates is not None:
        zeros = [np.zeros(part.shape[1]) for part in updates]
        more["mixed_coordinates"] = lambda A: Coordinates(
            [part if A is None else A @ part for part in updates], zeros
        )  # fmt: skip
        more["signs"] = lambda: signs
    geometry = GramGeometry.of_layers(
        layers, has_reference=True, about_reference=lambda: about, layer_sizes=sizes, **more
    )
    start = time.process_time()
    mix = step.mix(geometry)
    seconds = time.process_time() - start
    if isinstance(step, Mixer):
        return {"matrix": mix, "seconds": seconds}
    if not isinstance(mix, Mix):
        raise TypeError(f"mix returned a {type(mix).__name__}: it must return a honestly.rules.rule.Mix")
    answer: dict[str, Any] = {"matrix": mix.matrix, "honesty": mix.honesty, "by_layer": mix.by_layer}
    if mix.verdicts is not None:
        answer["verdicts"] = np.array([str(getattr(v, "value", v)) for v in mix.verdicts])
    return {**{key: value for key, value in answer.items() if value is not None}, "seconds": seconds}


def _send(pipe: Connection, **values: Any) -> None:
    """Arrays, never pickled: the judge does not run what a stranger's process sends."""
    out = io.BytesIO()
    arrays = {key: np.asarray(value) for key, value in values.items()}
    for key, value in arrays.items():
        if value.dtype == object:
            raise TypeError(f"returned {key} that are not numbers: {str(value)[:80]}")
    np.savez(out, allow_pickle=False, **arrays)
    with suppress(BrokenPipeError):
        pipe.send_bytes(out.getvalue())
