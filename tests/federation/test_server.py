"""The server's optimiser: dtypes, array libraries, and restarts."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from honestly.federation.record import Reply
from honestly.federation.referee import Referee
from honestly.federation.server import make_server

STEPS = ["fedavgm:lr=0.5", "fedadam:lr=0.03", "fedyogi", "fedadagrad"]


def zeros(kind: str, dtype: str) -> dict[str, Any]:
    """A model of one library, with a number beside its vector."""
    if kind == "numpy":
        return {"w": np.zeros(8, dtype), "s": np.zeros((), dtype)}
    import torch

    return {"w": torch.zeros(8, dtype=getattr(torch, dtype)), "s": torch.zeros((), dtype=getattr(torch, dtype))}


def play(server: str, model: dict[str, Any], rounds: range, folder: Path | None = None) -> dict[str, Any]:
    """The model after rounds in which four clients want to move by 0.01, 0.02, 0.03 and 0.04."""
    referee = Referee("mean", server=server, history=folder)
    for number in rounds:
        updates = [{name: old + 0.01 * (k + 1) for name, old in model.items()} for k in range(4)]
        replies = [Reply(client=k, update=update) for k, update in enumerate(updates)]
        model = referee.judge(number, replies, reference=model)[0]
    return model


@pytest.mark.parametrize("server", STEPS)
@pytest.mark.parametrize("kind", ["torch bfloat16", "torch float16", "torch float32", "numpy float16", "numpy float32"])
def test_every_dtype_takes_its_steps_and_continues_after_a_restart(
    server: str, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = zeros(*kind.split())
    exact = play(server, zeros("numpy", "float64"), range(1, 7))
    with caplog.at_level(logging.WARNING):
        whole = play(server, model, range(1, 7))
        half = play(server, model, range(1, 4), tmp_path)
        again = play(server, half, range(4, 7), tmp_path)
    assert caplog.text == ""
    for name, values in exact.items():
        assert whole[name].dtype == model[name].dtype
        assert float(again[name].max()) == float(whole[name].max())
        np.testing.assert_allclose(float(whole[name].max()), values.max(), rtol=0.01)


FORMS: dict[str, Any] = {
    "an array": lambda x: x,
    "a tuple": lambda x: (x[:3], x[3:]),
    "nested": lambda x: {"fc": {"w": x[:3], "b": x[3:]}},
    "an array without axes": lambda x: {"w": x, "s": x[0].reshape(())},
}


@pytest.mark.parametrize("difference", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_the_model_keeps_its_form(
    name: str, difference: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    form, lr = FORMS[name], 0.5
    for number in (1, 2):  # the second time with moments from the disk
        referee = Referee("mean", server=f"fedavgm:lr={lr},momentum=0", history=tmp_path)
        old = None if difference else form(np.zeros(4))
        value, _ = referee.judge(
            number, [Reply(k, update=form(np.ones(4))) for k in range(3)], reference=old, difference=difference
        )
        assert repr(value) == repr(form(np.full(4, lr)))
    assert caplog.text == ""


def test_small_squares_of_16_bits_are_not_lost() -> None:
    """0.01 d^2 is below the smallest float16: without a second moment a step would be as long as lr d / tau allows."""
    found: list[float] = []
    for dtype in ("float16", "float32"):
        step, model = make_server("fedadam:tau=1e-6"), {"w": np.zeros(3, dtype)}
        assert step is not None
        for _ in range(3):
            model = step.next(model, {"w": model["w"] + np.array(1e-3, dtype)})
        found.append(float(model["w"][0]))
    assert found[0] == pytest.approx(found[1], rel=0.02)
