"""Which tensors make a layer: every column in exactly one, at most about a hundred, buffers apart."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import honestly as hn
from honestly.arrays import ArraySpec
from honestly.sources import open_source
from honestly.sources.grouping import Buffers, layers_of
from honestly.sources.source import Leaf


def leaves(sizes: dict[str, int]) -> list[Leaf]:
    return [Leaf(name, ArraySpec((size,), "float32", "float")) for name, size in sizes.items()]


def resnet(blocks: int) -> dict[str, int]:
    found = {"conv1.weight": 300, "bn1.weight": 8, "bn1.bias": 8, "bn1.running_mean": 8, "bn1.running_var": 8}
    for i in range(blocks):
        for j in (1, 2):
            found[f"layer.{i}.conv{j}.weight"] = 576
            found |= {f"layer.{i}.bn{j}.{t}": 8 for t in ("weight", "bias", "running_mean", "running_var")}
    return found | {"fc.weight": 80, "fc.bias": 10}


def check(sizes: dict[str, int], buffers: str = "follow") -> list[Any]:
    found = layers_of(leaves(sizes), Buffers.of(buffers))
    seen = [np.zeros(size, int) for size in sizes.values()]
    for layer in found:
        for leaf, start, stop in layer.spans:
            seen[leaf][start:stop] += 1
    assert all((columns == 1).all() for columns in seen)
    assert len({layer.name for layer in found}) == len(found)
    return list(found)


def test_up_to_a_hundred_tensors_are_layers_themselves() -> None:
    found = check(resnet(6))
    assert [layer.name for layer in found][:3] == ["conv1", "bn1.weight", "bn1.bias"]
    assert [layer.name for layer in found if layer.follows][:2] == ["bn1.running_mean", "bn1.running_var"]
    assert "fc.weight" in {layer.name for layer in found}


def test_more_are_joined_within_their_modules_first() -> None:
    found = check(resnet(24))
    judged = [layer for layer in found if not layer.follows]
    assert len(judged) <= 100
    assert sum(layer.follows for layer in found) <= 40
    assert all(layer.kept for layer in check(resnet(24), "ignore") if layer.follows)
    assert not any(layer.follows for layer in check(resnet(6), "judge"))
    names = [layer.name for layer in judged]
    assert "layer.3.bn1 (2 tensors)" in names
    assert "layer.3.conv1" in names
    names = [layer.name for layer in check(resnet(40)) if not layer.follows]
    assert "layer.3.conv1 (3 tensors)" in names  # the convolution, and its norm's weight and bias
    first = layers_of(leaves(resnet(24)), Buffers())
    assert first == layers_of(leaves(resnet(24)), Buffers())


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=400), st.integers(1, 30), st.integers(0, 2**16))
def test_any_sizes(sizes: list[int], per_block: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = rng.choice(["weight", "bias", "running_var", "gate.weight"], size=len(sizes))
    check({f"b{i // per_block}.m{i}.{kind}": size for i, (size, kind) in enumerate(zip(sizes, kinds, strict=True))})


def test_many_equal_blocks_are_cut_alike() -> None:
    sizes = {f"h.{i}.{m}.weight": s for i in range(40) for m, s in (("q", 64), ("k", 64), ("up", 256), ("norm", 8))}
    widths = [layer.size for layer in check(sizes)]
    assert len(widths) <= 100
    assert widths == widths[: len(widths) // 40] * 40


@pytest.mark.parametrize(
    ("name", "buffer"),
    [
        ("0.running_mean", True),
        ("module.bn.num_batches_tracked", True),
        ("batch_stats.BatchNorm_0.mean", True),
        ("bn/moving_variance", True),
        ("bn.weight", False),
        ("running_mean_head.weight", False),
    ],
)
def test_names_of_buffers(name: str, buffer: bool) -> None:
    assert Buffers().hold(name) is buffer


def test_only_buffers_are_judged_after_all() -> None:
    (layer,) = layers_of(leaves({"bn.running_var": 5}), Buffers())
    assert not layer.follows


def test_sizes_of_a_flat_array() -> None:
    X = np.zeros((3, 10), np.float32)
    found = open_source(X, layers={"a.weight": 4, "a.running_var": 6}).layers
    assert [(layer.name, layer.size, layer.follows) for layer in found] == [("a", 4, False), ("a.running_var", 6, True)]
    assert [layer.spans for layer in open_source(X, layers=[4, 0, 6]).layers] == [((0, 0, 4),), ((0, 4, 10),)]
    assert [layer.size for layer in open_source({"x": X[0], "y": X[1]}, layers=[3, 7]).layers] == [3, 7]
    assert [layer.size for layer in open_source(X).layers] == [10]


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([4, 5], "sum to 9, but an update holds 10"),
        ([4.5, 5.5], "size 4.5"),
        ([-1, 11], "size -1"),
        (7, "layers is 7"),
    ],
)
def test_wrong_sizes(layers: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hn.aggregate(np.ones((3, 10)), layers=layers)


def test_layers_of_updates_that_know_theirs() -> None:
    with pytest.raises(ValueError, match="hold 2 tensors"):
        hn.aggregate([{"a": np.ones(2), "b": np.ones(3)}] * 3, layers=[2, 3])
