"""The buffer of an asynchronous federation: which updates count, and how much they weigh."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffered_updates import fill, update

import honestly as hn
from honestly.federation.differences import add_change
from honestly.result import Verdict


def test_it_averages_when_full_and_starts_over() -> None:
    buffer = hn.Buffer(5, "mean")
    assert fill(buffer, range(4)) is None
    assert (len(buffer), buffer.version) == (4, 0)
    out = buffer.add("site-4", update(4), version=0)
    assert out is not None
    np.testing.assert_allclose(out.value["w"], np.mean([update(k)["w"] for k in range(5)], axis=0), rtol=1e-6)
    assert out.value["w"].dtype == np.float32
    assert out.clients == tuple(f"site-{k}" for k in range(5))
    assert (len(buffer), buffer.version) == (0, 1)


@pytest.mark.parametrize("rule", ["mean", "bayesian", "multi_krum", "geometric_median"])
def test_staleness_is_multiplied_into_the_weights_after_judging(rule: str) -> None:
    made = hn.make(rule, f=1) if rule == "multi_krum" else hn.make(rule)
    fresh, stale = hn.Buffer(6, made, version=8), hn.Buffer(6, made, version=8)
    for k in range(6):
        plain = fresh.add(k, update(k)["w"], version=8)
        late = stale.add(k, update(k)["w"], version=8 - k)
    if rule == "bayesian":
        assert late.honesty == pytest.approx(plain.honesty)
    used = plain.weights / np.sqrt(1 + np.arange(6))
    np.testing.assert_allclose(late.value, sum(used[k] * update(k)["w"] for k in range(6)), rtol=1e-5)
    assert late.diagnostics["reference_weight"] > 0.1
    assert list(late.diagnostics["staleness"]) == list(range(6))


def test_without_weights_the_whole_step_is_discounted() -> None:
    fresh, stale = hn.Buffer(5, "median", version=3), hn.Buffer(5, "median", version=3)
    for k in range(5):
        plain, late = fresh.add(k, update(k), version=3), stale.add(k, update(k), version=0)
    np.testing.assert_allclose(late.value["w"], 0.5 * plain.value["w"], rtol=1e-6)


def test_a_discount_of_zero_changes_nothing() -> None:
    buffer = hn.Buffer(5, "mean", version=3, discount=0)
    for k in range(5):
        out = buffer.add(k, update(k), version=0)
    np.testing.assert_allclose(out.value["w"], np.mean([update(k)["w"] for k in range(5)], axis=0), rtol=1e-6)


def test_mixers_come_before_the_discount() -> None:
    buffer = hn.Buffer(6, hn.MultiKrum(f=1), pre=hn.NNM(f=1), version=3)
    for k in range(6):
        out = buffer.add(k, update(k), version=0)
    np.testing.assert_allclose(out.value["b"], 0.5, rtol=1e-6)


def test_a_late_client_is_unusual_but_not_accused_and_gains_nothing() -> None:
    buffer = hn.Buffer(12, version=10)
    for k in range(12):
        late, liar = k == 11, k >= 9
        out = buffer.add(k, update(k, 400, scale=-4 if liar else 1), version=4 if late else 9)
    assert out.verdicts[9] is Verdict.ACCUSED
    assert out.verdicts[11] is Verdict.UNUSUAL
    assert out.explanations[11].startswith("started from a model 6 versions old")
    assert out.weights[9:].max() < 0.03
    assert out.honesty[11] < 0.5


def test_a_second_answer_replaces_the_first_and_an_older_one_does_not() -> None:
    buffer = hn.Buffer(3, "mean", version=5)
    buffer.add("a", update(1), version=4)
    buffer.add("a", update(2), version=5)
    assert len(buffer) == 1
    buffer.add("a", update(3), version=3)
    assert "newer update from version 5" in buffer.refused["a"]
    buffer.add("b", update(2), version=5)
    out = buffer.add("c", update(2), version=5)
    np.testing.assert_allclose(out.value["w"], update(2)["w"], rtol=1e-6)  # float32: some CPUs round once more


def test_numpy_integers_are_sizes_ids_and_versions(tmp_path: Path) -> None:
    buffer = hn.Buffer(np.int64(3), "mean", max_staleness=np.int32(5), folder=tmp_path)
    for client in np.arange(3):
        out = buffer.add(client, update(client), version=np.int64(buffer.version))
    assert out is not None
    assert out.clients == (0, 1, 2)
    assert buffer.version == 1
    buffer.add(np.int64(1), update(8), version=1)
    buffer.add(1, update(9), version=np.uint8(1))  # the same client: the second answer replaces the first
    assert buffer.clients == (1,)
    assert not buffer.refused


@pytest.mark.parametrize("kind", [np.int64, np.uint16, np.float32])
def test_numpy_numbers_are_reported_sizes(kind: Any) -> None:
    found: list[Any] = []
    for make in (int, kind):
        buffer = hn.Buffer(3, "bayesian")
        found += [buffer.add(f"c{k}", update(k), version=0, size=make(1 + k)) for k in range(3)][-1:]
    np.testing.assert_array_equal(found[0].weights, found[1].weights)
    assert found[0].weights[0] < 0.2


def test_an_update_that_was_counted_does_not_count_again() -> None:
    buffer = hn.Buffer(2, "mean")
    fill(buffer, range(2))
    assert buffer.add("site-0", update(0), version=0) is None
    assert buffer.refused == {"site-0": "this update from version 0 was already counted"}
    buffer.add("site-0", update(7), version=0)  # it trained once more on the model that it had
    assert len(buffer) == 1
    assert buffer.refused == {}
    buffer.add("site-1", update(1), version=1)
    buffer.add("site-0", update(8), version=2)
    buffer.add("site-1", update(9), version=2)
    assert buffer.version == 3
    buffer.add("site-0", update(9), version=1)
    assert buffer.refused == {"site-0": "its newer update from version 2 was already counted"}


@pytest.mark.parametrize(
    ("sent", "version", "reason"),
    [
        (update(0), 3, "3 versions ago; at most max_staleness=2"),
        (update(0), 7, "version 7, but the newest is 6"),
        (update(0), "6", "version '6', which is not a version"),
        (update(0), True, "which is not a version"),
        ({**update(0), "b": np.array([1, np.nan, 1], "f4")}, 6, "tensor 'b' holds values that are not finite"),
        ({"w": update(0)["w"]}, 6, "tensor 'b' is missing"),
        ({**update(0), "b": np.zeros(4, "f4")}, 6, "shape"),
        ({**update(0), "b": np.array(["x", "y", "z"])}, 6, "tensor 'b' has dtype"),
        ("no update", 6, "is a str"),
        (None, 6, "NoneType"),
        ({"w": object()}, 6, "object"),
    ],
)
def test_unusable_updates_take_no_place_and_never_raise(sent: Any, version: Any, reason: str) -> None:
    said: list[str] = []
    buffer = hn.Buffer(3, version=6, max_staleness=2, like=update(0), log=lambda level, text: said.append(text))
    assert buffer.add("x\x1b[2J", sent, version=version) is None
    assert reason in buffer.refused["x\x1b[2J"]
    assert len(buffer) == 0
    assert all(text.isprintable() for text in said)


@pytest.mark.parametrize("size", [2**64, 10**400, float("nan"), float("inf"), "many", [3], -1, 0])
def test_no_reported_size_stops_the_server(tmp_path: Path, size: Any) -> None:
    buffer = hn.Buffer(4, "bayesian", folder=tmp_path)
    assert fill(buffer, range(3), size=10) is None
    out = buffer.add("site-3", update(3), version=0, size=size)
    assert out is not None
    assert out.weights is not None
    assert out.weights[3] < 0.5


def test_refusals_are_bounded_and_reach_the_history() -> None:
    buffer = hn.Buffer(2, "mean", log=lambda level, text: None)
    for k in range(1500):
        buffer.add(10_000 + k, None, version=0)
    assert len(buffer.refused) == 1000
    fill(buffer, range(2))
    assert len(buffer.history[0].excluded) == 1000
    assert buffer.refused == {}


def test_without_a_model_the_majority_decides_the_layout() -> None:
    buffer = hn.Buffer(4, "mean")
    buffer.add("odd", {"other": np.ones(2)}, version=0)
    out = fill(buffer, range(3))
    assert out.excluded == ("odd",)
    assert list(out.value) == ["w", "b"]
    assert buffer.history[0].excluded.keys() == {"odd"}


def test_a_buffer_that_cannot_be_averaged_is_not_stuck() -> None:
    buffer = hn.Buffer(2, "mean", log=lambda level, text: None)
    buffer.add("a", {"v": np.ones(2)}, version=0)
    assert buffer.add("b", {"w": np.ones(2)}, version=0) is None
    assert buffer.version == 0
    assert fill(buffer, range(2)) is not None


def test_models_are_taken_with_their_base() -> None:
    buffer = hn.Buffer(2, "mean", like=update(0))
    base = update(9)
    for k in range(2):
        out = buffer.add(k, {n: base[n] + update(k)[n] for n in base}, version=0, base=base)
    expected = np.mean([update(k)["w"] for k in range(2)], axis=0)
    np.testing.assert_allclose(out.value["w"], expected, rtol=1e-4, atol=1e-6)


def test_a_mask_of_booleans_refuses_nobody() -> None:
    base = {"w": np.zeros(4), "mask": np.array([True, False, True])}
    buffer = hn.Buffer(3, "mean", like=base)
    for k in range(3):
        out = buffer.add(k, {"w": np.ones(4), "mask": np.array([True, True, False])}, version=0, base=base)
    assert out is not None, buffer.refused
    np.testing.assert_array_equal(out.value["w"], 1.0)
    assert out.value["mask"].tolist() == [False, True, True]  # which of them changed
    assert add_change(base["mask"], out.value["mask"]).tolist() == [True, True, False]


def test_containers_come_back_as_they_went_in() -> None:
    import torch

    cases = {
        "list": [np.ones((2, 2)), np.ones(3)],
        "nested": {"layer": {"w": np.ones(2), "n": np.array([3])}},
        "torch": {"w": torch.ones(3, dtype=torch.bfloat16)},
    }
    for name, value in cases.items():
        buffer = hn.Buffer(2, "mean", like=value)
        buffer.add(0, value, version=0)
        out = buffer.add(1, value, version=0).value
        if name == "list":
            assert isinstance(out, list)
            assert out[0].shape == (2, 2)
        elif name == "nested":
            assert out["layer"]["n"].tolist() == [3]
        else:
            assert out["w"].dtype == np.float32


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"size": True},
        {"size": 2.5},
        {"discount": -1},
        {"discount": "none"},
        {"discount": None},
        {"discount": float("nan")},
        {"max_staleness": -1},
        {"like": "model"},
        {"like": {}},
    ],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        hn.Buffer(**{"size": 3, **wrong})
    with pytest.raises(ValueError, match="client"):
        hn.Buffer(3).add(("a", 1), update(0), version=0)
    with pytest.raises(ValueError, match="f"):
        hn.Buffer(3, hn.Krum(f=4))
