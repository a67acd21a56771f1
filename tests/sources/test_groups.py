"""Updates that are sums or means over groups of clients: the groups are judged."""

from __future__ import annotations

import importlib
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import honestly as hn

COUNTS = np.array([5, 8, 8, 10, 7, 9, 6, 8, 8])


def clients(bad: tuple[int, ...] = ()) -> list[np.ndarray]:
    """Groups of clients; in each bad group, one client lies strongly enough to dominate it."""
    rng = np.random.default_rng(0)
    lie = 30 * rng.normal(size=300)
    groups = [1 + rng.normal(size=(count, 300)) for count in COUNTS]
    for g in bad:
        groups[g][0] = lie
    return groups


def sums(bad: tuple[int, ...] = ()) -> np.ndarray:
    return np.stack([group.sum(axis=0) for group in clients(bad)])


@pytest.mark.parametrize("kind", ["array", "dicts", "mapping", "lists", "torch"])
def test_sums_are_the_means_by_count(kind: str) -> None:
    total, means = sums(), np.stack([group.mean(axis=0) for group in clients()])
    expected = hn.aggregate(means, groups=COUNTS)
    counts: Any = COUNTS
    if kind == "array":
        updates: Any = total
    elif kind == "torch":
        import torch

        updates = torch.tensor(total)
    elif kind == "lists":
        updates = [[row[:100], row[100:].reshape(20, 10)] for row in total]
    else:
        updates = [{"w": row, "n": np.array(7 * m)} for row, m in zip(total, COUNTS, strict=True)]
    if kind == "mapping":
        updates = {f"edge-{g}": update for g, update in enumerate(updates)}
        counts = {f"edge-{g}": m for g, m in enumerate(COUNTS)}
    before = total.copy()
    out = hn.aggregate(updates, groups=hn.Groups(counts, sums=True))
    np.testing.assert_array_equal(total, before)
    value = out.value
    if kind == "torch":
        value = value.numpy()
    elif kind == "lists":
        value = np.concatenate([value[0], value[1].reshape(-1)])
    elif kind in ("dicts", "mapping"):
        assert value["n"] == 7
        value = value["w"]
    if kind != "lists":  # which has two layers
        np.testing.assert_allclose(value, expected.value, rtol=1e-9, atol=1e-9)
    assert np.abs(value - 1).max() < 1
    np.testing.assert_array_equal(out.diagnostics["group_counts"], COUNTS)
    assert out.diagnostics["clients_believed"] == COUNTS.sum()


def test_one_liar_costs_its_group() -> None:
    out = hn.aggregate(sums(bad=(2, 6)), groups=hn.Groups(COUNTS, sums=True))
    assert out.accused == (2, 6)
    assert out.diagnostics["clients_believed"] == COUNTS.sum() - COUNTS[[2, 6]].sum()
    honest = [group for g, group in enumerate(clients()) if g not in (2, 6)]
    mean = np.concatenate(honest).mean(axis=0)
    assert np.abs(out.value - mean).max() < 0.2
    plain = sums(bad=(2, 6)).sum(axis=0) / COUNTS.sum()
    assert np.abs(plain - mean).max() > 1


def test_liars_in_most_groups_cannot_be_outvoted() -> None:
    """As documented: M liars in M groups control more than half of the groups."""
    bad = (0, 1, 2, 3, 4)  # 5 liars among 69 clients
    out = hn.aggregate(sums(bad), groups=hn.Groups(COUNTS, sums=True))
    assert np.abs(out.value - 1).max() > 2
    alone = hn.aggregate(np.concatenate(clients(bad)))
    assert np.abs(alone.value - 1).max() < 1


def test_counts_are_claims_up_to_the_cap() -> None:
    counts: list[Any] = [*COUNTS]
    counts[0] = 10**9
    means = np.stack([group.mean(axis=0) for group in clients()])
    out = hn.aggregate(means, groups=counts)
    assert out.diagnostics["used_shares"][0] <= 3 * np.median(out.diagnostics["used_shares"])


def test_a_group_without_a_count_is_refused_where_it_is_needed() -> None:
    for wrong in (0, -3, None, "many", float("nan")):
        counts: list[Any] = [*COUNTS]
        counts[4] = wrong
        out = hn.aggregate(list(sums()), groups=hn.Groups(counts, sums=True))
        assert out.excluded == (4,)
        assert "number of clients" in out.reasons[4]
        means = np.stack([group.mean(axis=0) for group in clients()])
        assert hn.aggregate(means, groups=counts).excluded == ()


def test_wrong_groups(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="3 entries for 9 updates"):
        hn.aggregate(sums(), groups=[1, 2, 3])
    with pytest.raises(ValueError, match="expected a number for each update"):
        hn.aggregate(sums(), groups="many")
    with pytest.raises(ValueError, match="files cannot be divided"):
        hn.aggregate([tmp_path / "a.npz"] * 3, groups=hn.Groups([1, 2, 3], sums=True))
    with pytest.raises(ValueError, match="can be read only once"):
        hn.aggregate(iter([1, 2]), groups=[1, 2])


def test_text_and_strange_objects_cost_their_group() -> None:
    updates: list[Any] = [{"w": row} for row in sums()]
    updates[1] = {"w": "weights"}
    updates[2] = {"w": object()}
    out = hn.aggregate(updates, groups=hn.Groups(COUNTS, sums=True))
    assert out.excluded == (1, 2)


class Pair(NamedTuple):
    w: Any
    rest: Any


def test_sums_keep_their_containers_counters_and_numbers() -> None:
    updates = [
        Pair(row, OrderedDict(scale=2.0 * m, seen=7 * m, on=True))
        for row, m in zip(sums(), COUNTS.tolist(), strict=True)
    ]
    value = hn.aggregate(updates, groups=hn.Groups(COUNTS, sums=True)).value
    assert isinstance(value, Pair)
    assert isinstance(value.rest, OrderedDict)
    assert value.rest == {"scale": pytest.approx(2.0), "seen": 7, "on": True}
    assert type(value.rest["seen"]) is int


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_sums_of_counters_of_other_libraries_stay_integers(library: str) -> None:
    if library == "torch":
        from torch import as_tensor as make
    else:
        from jax.numpy import asarray as make
    updates = [{"w": make(row), "n": make(7 * int(m))} for row, m in zip(sums(), COUNTS, strict=True)]
    model = {"w": make(np.zeros(300)), "n": make(7)}
    out = hn.aggregate(updates, reference=model, groups=hn.Groups(COUNTS, sums=True))
    assert out.excluded == ()
    assert out.value["n"].dtype == model["n"].dtype
    assert int(out.value["n"]) == 7


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_sums_of_integers_without_a_count_are_refused(library: str) -> None:
    whole: Any = np.rint(1000 * sums()).astype(np.int64)
    if library == "torch":
        import torch

        whole = torch.as_tensor(whole)
    counts: list[Any] = [*COUNTS]
    counts[4] = None
    out = hn.aggregate(whole, groups=hn.Groups(counts, sums=True))
    assert out.excluded == (4,)
    assert abs(float(out.value.mean()) - 1000) < 50


def test_a_sum_nested_too_deep_costs_its_group() -> None:
    deep: Any = sums()[1]
    for _ in range(100_000):
        deep = [deep]
    updates: list[Any] = [[row] for row in sums()]
    updates[1] = deep
    out = hn.aggregate(updates, groups=hn.Groups(COUNTS, sums=True))
    assert out.excluded == (1,)
    assert "deep" in out.reasons[1]


@pytest.mark.parametrize("form", ["array", "dicts"])
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_counts_beyond_float16_divide_sums_of_float16(form: str, library: str) -> None:
    means = 0.01 * np.random.default_rng(0).normal(size=(5, 30))
    counts = [70_000, 90_001, 65_537, 100_000, 80_000]
    total: Any = (means * np.array(counts)[:, None]).astype(np.float16)
    if library == "torch":
        total = importlib.import_module("torch").tensor(total)
    elif library == "jax":
        total = importlib.import_module("jax.numpy").asarray(total)
    updates = total if form == "array" else [{"w": total[g]} for g in range(5)]
    out = hn.aggregate(updates, "median", groups=hn.Groups(counts, sums=True))
    value = out.value if form == "array" else out.value["w"]
    assert "float16" in str(value.dtype)
    np.testing.assert_allclose(np.asarray(value, np.float64), np.median(means, axis=0), rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize("count", [1e300, 1e-300, 1e308])
@pytest.mark.parametrize("form", ["array", "dicts"])
def test_an_absurd_count_costs_a_group_its_own_vote_at_most(count: float, form: str) -> None:
    total = sums().astype(np.float32)
    updates: Any = total if form == "array" else [{"w": row, "n": np.array(56)} for row in total]
    out = hn.aggregate(updates, groups=hn.Groups([*COUNTS[:-2].tolist(), count, count], sums=True))
    value = out.value if form == "array" else out.value["w"]
    assert np.abs(value - 1).max() < 1
