"""The engine: any container, dtype and library in, the same out; the right weights on the right clients."""

from __future__ import annotations

import importlib
from collections import OrderedDict, namedtuple
from collections.abc import Callable

import numpy as np
import pytest
import torch
from conftest import Library, tolerance
from hypothesis import given, settings
from hypothesis import strategies as st

import honestly as hn

Federation = Callable[..., np.ndarray]
# One rule of each kind: no Gram pass, weights from the Gram matrix, one client, columns, selection then columns.
KINDS = [hn.Mean(), hn.Bayesian(), hn.Krum(f=2), hn.Median(), hn.TrimmedMean(trim=0.2), hn.Bulyan(f=1)]


def kind_name(rule: hn.Rule) -> str:
    return type(rule).__name__


@pytest.mark.parametrize("rule", KINDS, ids=kind_name)
def test_every_library_and_dtype_gives_the_float64_answer(xp: Library, federation: Federation, rule: hn.Rule) -> None:
    for dtype in xp.dtypes():
        X = xp.array(federation(M=2), dtype)
        exact = hn.aggregate(xp.numpy(X), rule)
        out = hn.aggregate(X, rule)
        assert type(out.value) is type(X)
        assert out.value.dtype == X.dtype
        assert tuple(out.value.shape) == (300,)
        np.testing.assert_allclose(xp.numpy(out.value), exact.value, rtol=0, atol=tolerance(dtype) * 5)
        if exact.weights is not None:
            assert out.weights is not None
            np.testing.assert_allclose(out.weights, exact.weights, atol=1e-4)


@pytest.mark.parametrize("rule", KINDS, ids=kind_name)
def test_containers_agree_with_the_matrix(federation: Federation, rule: hn.Rule) -> None:
    X = federation(M=2, d=60)
    pair = namedtuple("pair", "w b")
    parts = [(x[:48].reshape(6, 8), x[48:]) for x in X]
    expected = hn.aggregate(X, rule, layers=[48, 12]).value
    containers = {
        "state dicts": ([OrderedDict(w=w, b=b) for w, b in parts], lambda v: (v["w"], v["b"]), OrderedDict),
        "lists": ([[w, b] for w, b in parts], lambda v: v, list),
        "tuples": ([(w, b) for w, b in parts], lambda v: v, tuple),
        "named tuples": ([pair(w, b) for w, b in parts], lambda v: v, pair),
        "nested": ([{"layer": {"w": w}, "b": [b]} for w, b in parts], lambda v: (v["layer"]["w"], v["b"][0]), dict),
    }
    for name, (updates, unpack, container) in containers.items():
        value = hn.aggregate(updates, rule).value
        assert type(value) is container, name
        w, b = unpack(value)
        assert w.shape == (6, 8), name
        np.testing.assert_allclose(np.concatenate([w.ravel(), b]), expected, rtol=1e-9, err_msg=name)


def test_higher_dimensional_array_keeps_one_clients_shape(federation: Federation) -> None:
    X = federation(M=2, d=60).reshape(10, 3, 4, 5)
    out = hn.aggregate(X)
    assert out.value.shape == (3, 4, 5)
    np.testing.assert_allclose(out.value.ravel(), hn.aggregate(X.reshape(10, -1)).value)


def test_mapping_reports_ids(federation: Federation) -> None:
    X = federation(M=0)
    X[3, 5] = np.nan
    clients = {2**64 - 1 - k: x for k, x in enumerate(X)}
    out = hn.aggregate(clients)
    assert out.clients == tuple(clients)
    assert out.excluded == (2**64 - 4,)
    assert "NaN" in out.reasons[2**64 - 4]


def test_torch_state_dict_of_a_real_module(federation: Federation) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Linear(5, 2))
    states = []
    for k in range(7):
        torch.manual_seed(k)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        model[1].num_batches_tracked.fill_(11 if k < 5 else 1000 + k)
        states.append({name: value.clone() for name, value in model.state_dict().items()})
    out = hn.aggregate(states, hn.Mean())
    model.load_state_dict(out.value)
    assert out.value["1.num_batches_tracked"].dtype == torch.int64
    assert out.value["1.num_batches_tracked"].item() == 11
    expected = torch.stack([state["0.weight"] for state in states]).mean(0)
    torch.testing.assert_close(out.value["0.weight"], expected)


@pytest.mark.parametrize("rule", ["mean", "median", "trimmed_mean"])
@pytest.mark.parametrize("lie", [-(2**62), 0, 2**62])
def test_one_client_does_not_choose_a_counter_that_differs_everywhere(rule: str, lie: int) -> None:
    honest = [101, 97, 103, 110, 95, 99]
    clients = [{"w": np.ones(3), "n": np.array([count, 7])} for count in [lie, *honest]]
    found = hn.aggregate(clients, rule).value["n"]
    assert 95 <= found[0] <= 110
    assert found[1] == 7


def test_integer_entries_follow_the_believed_clients() -> None:
    """Four honest clients with counter 7 against three liars with counter 9: a mode by votes, and never a float."""
    rng = np.random.default_rng(0)
    honest = rng.normal(size=(7, 500))
    updates = [{"w": x * (-9 if k > 3 else 1), "n": np.int64(9 if k > 3 else 7)} for k, x in enumerate(honest)]
    updates[0]["n"] = np.int64(5)
    out = hn.aggregate(updates)
    assert out.value["n"].dtype == np.int64
    assert out.value["n"] == 7


def test_input_is_not_modified(xp: Library, federation: Federation) -> None:
    X = xp.array(federation(M=2))
    before = xp.numpy(X).copy()
    for rule in KINDS:
        hn.aggregate(X, rule)
    np.testing.assert_array_equal(xp.numpy(X), before)


def test_read_only_and_strided_input(federation: Federation) -> None:
    X = federation(M=2, d=400)
    expected = hn.aggregate(X).value
    X.setflags(write=False)
    np.testing.assert_array_equal(hn.aggregate(X).value, expected)
    wide = np.zeros((20, 800))
    wide[::2, ::2] = X
    np.testing.assert_allclose(hn.aggregate(wide[::2, ::2]).value, expected, rtol=1e-12)
    np.testing.assert_allclose(hn.aggregate(np.asfortranarray(X)).value, expected, rtol=1e-12)
    layers = [{"w": np.asfortranarray(x.reshape(20, 20))} for x in X]
    np.testing.assert_allclose(hn.aggregate(layers).value["w"].ravel(), expected, rtol=1e-12)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_non_native_byte_order(federation: Federation, dtype: type) -> None:
    X = federation(M=2, d=400).astype(dtype)
    swapped = X.astype(X.dtype.newbyteorder())
    for rule in ("bayesian", "median"):
        expected = hn.aggregate(X, rule)
        for updates in (swapped, list(swapped), [swapped[0], *X[1:]]):
            out = hn.aggregate(updates, rule, reference=swapped[0])
            assert out.excluded == ()
            assert out.value.dtype == X.dtype
            np.testing.assert_allclose(out.value, expected.value, rtol=2e-3 if dtype is np.float16 else 1e-4, atol=1e-5)
    counted = hn.aggregate([{"w": x, "n": np.array([7], ">i8" if k else "<i8")} for k, x in enumerate(X)])
    assert counted.value["n"] == 7


def test_gradients_are_not_changed(federation: Federation) -> None:
    X = torch.tensor(federation(), requires_grad=True)
    out = hn.aggregate(X)
    assert not out.value.requires_grad
    assert not hn.aggregate([{"w": x} for x in X]).value["w"].requires_grad


def test_mixed_libraries_and_widths_average(federation: Federation) -> None:
    X = federation().astype(np.float32)
    updates = [{"w": x} for x in X]
    updates[4] = {"w": torch.from_numpy(X[4]).double()}
    out = hn.aggregate(updates, "mean")
    assert out.excluded == ()
    assert out.value["w"].dtype == np.float32
    np.testing.assert_allclose(out.value["w"], X.mean(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("K", [1, 2, 3, 5, 20, 45, 101, 1000])
@pytest.mark.parametrize("d", [1, 2, 700])
def test_shapes(K: int, d: int) -> None:
    X = np.random.default_rng(K * d).normal(size=(K, d)).astype(np.float32)
    np.testing.assert_allclose(hn.aggregate(X, "mean").value, X.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(hn.aggregate(X, "median").value, np.median(X, axis=0), rtol=1e-6)
    out = hn.aggregate(X)
    assert np.isfinite(out.value).all()
    assert out.weights is not None
    assert abs(out.weights.sum() - 1) < 1e-9


def test_reference_does_not_change_a_translation_equivariant_rule(federation: Federation) -> None:
    X = federation(M=2)
    model = np.random.default_rng(1).normal(size=300) * 10
    for rule in (hn.Krum(f=2), "geometric_median"):  # with a reference, the Bayesian rule detects opposition
        np.testing.assert_allclose(
            hn.aggregate(X + model, rule, reference=model).value, hn.aggregate(X, rule).value + model, atol=1e-6
        )


def test_reference_gets_the_remaining_weight(federation: Federation) -> None:
    """Clipping gives the rest of the weight to the reference; selections and mixers before columns ignore it."""
    X, model = federation(), np.full(300, 2.0)
    clipped = hn.aggregate(X + model, hn.CenteredClipping(), reference=model)
    np.testing.assert_allclose(clipped.value, hn.aggregate(X, hn.CenteredClipping(), reference=0 * model).value + model)
    for rule, pre in ((hn.Bulyan(f=1), ()), (hn.Median(), hn.NNM(f=2)), (hn.TrimmedMean(trim=0.1), hn.NNM(f=2))):
        with_reference = hn.aggregate(X, rule, pre=pre, reference=model)
        np.testing.assert_allclose(with_reference.value, hn.aggregate(X, rule, pre=pre).value, atol=1e-12)


def test_mixers_compose_as_matrices(federation: Federation) -> None:
    X = federation(K=12, M=3)
    out = hn.aggregate(X, hn.Mean(), pre=[hn.NNM(f=3)])
    D = ((X[:, None] - X[None]) ** 2).sum(-1)
    mixed = np.stack([X[np.argsort(row)[:9]].mean(0) for row in D])
    np.testing.assert_allclose(out.value, mixed.mean(0))
    np.testing.assert_allclose(out.weights @ X, out.value)  # pyright: ignore[reportOptionalOperand]
    median = hn.aggregate(X, hn.Median(), pre=[hn.NNM(f=3)])
    np.testing.assert_allclose(median.value, np.median(mixed, axis=0))
    honesty = hn.aggregate(X, hn.Bayesian(), pre=hn.NNM(f=3)).honesty
    assert honesty is not None
    assert honesty.shape == (12,)
    assert ((honesty >= 0) & (honesty <= 1)).all()


def test_weights_of_excluded_clients_are_exactly_zero(federation: Federation) -> None:
    X = federation()
    X[2] = np.inf
    for rule in KINDS:
        out = hn.aggregate(X, rule)
        assert out.excluded == (2,)
        assert np.isfinite(out.value).all()
        for per_client in (out.weights, out.honesty):
            if per_client is not None:
                assert per_client[2] == 0.0


@pytest.mark.parametrize("rule", KINDS, ids=kind_name)
def test_same_bits_for_any_number_of_threads(rule: hn.Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(12, 150_000)).astype(np.float32)
    found = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("HONESTLY_THREADS", threads)
        found.append(hn.aggregate(X, rule))
    for other in found[1:]:
        assert other.value.tobytes() == found[0].value.tobytes()
        if other.weights is not None:
            assert other.weights.tobytes() == found[0].weights.tobytes()


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(11)), st.integers(0, 2**32))
def test_permuting_clients_permutes_the_answer(order: list[int], seed: int) -> None:
    X = np.random.default_rng(seed).normal(size=(11, 40))
    X[:4] *= -3
    for rule in (hn.Bayesian(), hn.GeometricMedian(), hn.Median(), hn.MultiKrum(f=3, keep=5)):
        plain, shuffled = hn.aggregate(X, rule), hn.aggregate(X[order], rule)
        np.testing.assert_allclose(shuffled.value, plain.value, atol=1e-7)
        if plain.weights is not None:
            np.testing.assert_allclose(shuffled.weights, plain.weights[order], atol=1e-7)


def test_large_K_streams_and_both_ways_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = importlib.import_module("honestly.engine.run")
    rng = np.random.default_rng(3)
    X = (rng.normal(size=(400, 300)) + rng.normal(size=300)).astype(np.float32)
    X[260:] = -3 * X[260:] + rng.normal(size=(140, 300))
    rules = [hn.GeometricMedian(), hn.Bayesian(variant="paper"), hn.Bayesian()]
    for rule in rules:
        by_gram = hn.aggregate(X, rule)
        with monkeypatch.context() as patch:
            patch.setattr(engine, "STREAM_FROM", 100)
            by_stream = hn.aggregate(X, rule)
        scale = np.linalg.norm(X[:260] - X[:260].mean(0)) / np.sqrt(260)
        error = np.linalg.norm(by_stream.value - by_gram.value) / scale
        assert error < 0.02, f"{rule}: {error}"


def test_status_is_a_sentence_and_repr_is_short(federation: Federation) -> None:
    out = hn.aggregate(federation())
    assert str(out.status) in repr(out)
    assert len(repr(out)) < 300
