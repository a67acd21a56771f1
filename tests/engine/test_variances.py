"""A client with a negative running variance: its share would make the model's outputs NaN."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import honestly as hn

VARIANCE = "bn.running_var"
State = dict[str, Any]


def clients(liars: int, lie: float = -5.0) -> list[State]:
    """Twenty models whose first channel is nearly silent; the lie there is short beside what the others differ by."""
    rng = np.random.default_rng(0)
    usual = np.array([1e-3, 30.0, *[1.0] * 14])
    states: list[State] = [
        {
            "conv.weight": rng.normal(size=(16, 16)).astype(np.float32),
            "bn.running_mean": rng.normal(0, 0.1, size=16).astype(np.float32),
            VARIANCE: (usual * rng.uniform(0.7, 1.3, size=16)).astype(np.float32),
        }
        for _ in range(20)
    ]
    for state in states[20 - liars :]:
        state[VARIANCE][0] = lie
    return states


def reference(state: State) -> State:
    return {name: np.ones_like(x) for name, x in state.items()}


@pytest.mark.parametrize("rule", ["bayesian", "mean", "median", "multi_krum:f=4", "nnm:f=4+geometric_median"])
@pytest.mark.parametrize(("liars", "known"), [(1, True), (1, False), (4, False), (9, True)])
def test_it_is_excluded_and_the_average_is_a_variance(rule: str, liars: int, known: bool) -> None:
    sent = clients(liars)
    out = hn.aggregate(sent, rule, reference=reference(sent[0]) if known else None)
    assert out.excluded == tuple(range(20 - liars, 20))
    assert out.reasons[19] == "tensor 'bn.running_var' holds a negative variance (-5)"
    assert (out.value[VARIANCE] > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_in_tensors_and_in_files(dtype: torch.dtype, tmp_path: Path) -> None:
    states = [{name: torch.tensor(x).to(dtype) for name, x in state.items()} for state in clients(2)]
    assert hn.aggregate(states).excluded == (18, 19)
    paths = [tmp_path / f"{k}.safetensors" for k in range(20)]
    for path, state in zip(paths, states, strict=True):
        save_file(state, path)
    assert hn.aggregate(paths, out=tmp_path / "out.safetensors").excluded == (18, 19)


def test_in_a_flat_array_whose_layers_have_names() -> None:
    sent = clients(2)
    flat = np.stack([np.concatenate([x.ravel() for x in state.values()]) for state in sent])
    out = hn.aggregate(flat, layers={name: x.size for name, x in sent[0].items()})
    assert out.excluded == (18, 19)


def test_names_of_keras_and_flax() -> None:
    for name in ("bn/moving_variance", "batch_stats.bn.var"):
        sent = [{"w": state["conv.weight"], name: state[VARIANCE]} for state in clients(1)]
        assert hn.aggregate(sent).excluded == (19,)
    sent = [{"w": state["conv.weight"], "head.var": state[VARIANCE]} for state in clients(1)]  # a parameter
    assert hn.aggregate(sent).excluded == ()


def test_differences_may_be_negative() -> None:
    """Most have some; where by chance few have, a reference says what they are."""
    sent = clients(0)
    middle = {name: np.mean([state[name] for state in sent], axis=0) for name in sent[0]}
    differences = [{name: state[name] - middle[name] for name in state} for state in sent]
    assert hn.aggregate(differences).excluded == ()
    nothing = {name: np.zeros_like(x) for name, x in middle.items()}
    assert hn.aggregate(clients(2), reference=nothing).excluded == ()
    assert hn.aggregate(clients(2), reference={**nothing, VARIANCE: -np.ones(16)}).excluded == ()


def test_liars_do_not_have_those_excluded_who_sent_differences() -> None:
    """Where most honest differences are positive, liars that send no negative ones outnumber the others that do not."""
    sent = clients(0)
    for k, state in enumerate(sent):
        state[VARIANCE] -= 0.5 if 5 <= k < 13 else 0.0  # by which the silent channel's become negative
    assert sum((state[VARIANCE] < 0).any() for state in sent) == 8
    assert hn.aggregate(sent).excluded == ()
