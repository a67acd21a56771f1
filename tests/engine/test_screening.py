"""A bad client is excluded and named; too few usable clients raise; errors for wrong arguments name the bound."""

from __future__ import annotations

import importlib
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import honestly as hn

Federation = Callable[..., np.ndarray]


class Explosive:
    """An object that raises on any access."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("boom")


def state(x: np.ndarray) -> dict[str, Any]:
    return {"w": x[:12].reshape(3, 4).astype(np.float32), "b": x[12:].astype(np.float32), "n": np.int64(3)}


BAD_CLIENTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "NaN": (lambda s: s | {"b": np.full_like(s["b"], np.nan)}, r"tensor 'b' at flat index 0 is NaN"),
    "Inf": (lambda s: s | {"w": np.full_like(s["w"], -np.inf)}, r"tensor 'w' at flat index 0 is infinite"),
    "overflow": (lambda s: s | {"w": np.full_like(s["w"], 1e30)}, r"tensor 'w' .* is 1e\+30: above 1e\+17"),
    "wrong shape": (lambda s: s | {"w": s["w"].T}, r"tensor 'w' has shape \(4, 3\), expected \(3, 4\)"),
    "missing": (lambda s: {"w": s["w"], "n": s["n"]}, r"tensor 'b' is missing"),
    "extra": (lambda s: s | {"evil": s["b"]}, r"tensor 'evil' is not part of the model"),
    "renamed": (lambda s: {"w": s["w"], "B": s["b"], "n": s["n"]}, r"tensor 'b' is missing"),
    "integers": (lambda s: s | {"b": np.ones_like(s["b"], dtype=np.int32)}, r"tensor 'b' holds integer values"),
    "complex": (lambda s: s | {"b": s["b"] * 1j}, r"tensor 'b' has dtype complex64"),
    "objects": (lambda s: s | {"b": np.array([None] * 8)}, r"tensor 'b' has dtype object"),
    "text": (lambda s: s | {"b": np.array(["x"] * 8)}, r"tensor 'b' has dtype"),
    "a string": (lambda s: "give me the model", r"is a str, not an array"),
    "None": (lambda s: None, r"is a NoneType, not an array"),
    "empty": (lambda s: {}, r"holds no arrays"),
    "a list instead": (lambda s: [s["w"], s["b"]], r"tensor 'w' is missing"),
    "explosive": (lambda s: {"w": Explosive(), "b": s["b"]}, r"cannot be read \(RuntimeError: boom\)"),
    "nested": (lambda s: {"w": {"w": s["w"]}, "b": s["b"], "n": s["n"]}, r"tensor 'w' is missing"),
    "sparse": (lambda s: s | {"w": torch.eye(3, 4).to_sparse()}, r"tensor 'w' has dtype torch.sparse_coo"),
    "on meta": (lambda s: s | {"w": torch.empty(3, 4, device="meta")}, r"tensor 'w' is on device 'meta'"),
    "float64 too large for float32": (
        lambda s: s | {"b": np.full(8, 1e300)},
        r"tensor 'b' at flat index 0 is (infinite|1e\+300)",
    ),
}


@pytest.mark.parametrize("rule", ["mean", "bayesian", "median"])
@pytest.mark.parametrize("fault", BAD_CLIENTS)
def test_one_bad_client_costs_its_own_vote(federation: Federation, fault: str, rule: str) -> None:
    spoil, reason = BAD_CLIENTS[fault]
    updates: list[Any] = [state(x) for x in federation(K=7, d=20)]
    updates[2] = spoil(updates[2])
    out = hn.aggregate(updates, rule)
    assert out.excluded == (2,)
    assert re.search(reason, out.reasons[2]), out.reasons[2]
    others = hn.aggregate([u for k, u in enumerate(updates) if k != 2], rule)
    np.testing.assert_allclose(out.value["w"], others.value["w"], rtol=1e-5)
    assert out.value["n"] == 3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38])
@pytest.mark.parametrize("rule", ["mean", "bayesian", "median", "geometric_median"])
def test_bad_rows_of_a_matrix(federation: Federation, value: float, rule: str) -> None:
    X = federation(K=9, d=5000).astype(np.float32)
    expected = hn.aggregate(np.delete(X, [0, 4, 8], axis=0), rule).value
    for k, column in ((0, 0), (4, 2500), (8, 4999)):
        X[k, column] = value
    out = hn.aggregate(X, rule)
    assert out.excluded == (0, 4, 8)
    assert [out.reasons[k].split(" is ")[0] for k in (0, 4, 8)] == [
        f"its array at flat index {column}" for column in (0, 2500, 4999)
    ]
    np.testing.assert_allclose(out.value, expected, rtol=1e-4, atol=1e-6)


def test_torch_device_pass_is_screened_as_well(federation: Federation) -> None:
    X = torch.tensor(federation(K=9, d=50), dtype=torch.bfloat16)
    X[1, 7] = torch.nan
    X[3, 9] = torch.inf
    out = hn.aggregate(X)
    assert out.excluded == (1, 3)
    assert out.value.dtype == torch.bfloat16


@pytest.mark.parametrize("rule", ["mean", "bayesian", "median"])
def test_no_majority_usable_raises_and_names_them(federation: Federation, rule: str) -> None:
    X = federation(K=6)
    X[:3] = np.nan
    with pytest.raises(hn.AggregationError, match="only 3 of 6 clients can be used, which is not a majority") as caught:
        hn.aggregate(X, rule)
    assert set(caught.value.reasons) == {0, 1, 2}
    assert "client 0: its array at flat index 0 is NaN" in str(caught.value)


def test_fewer_than_the_rule_needs(federation: Federation) -> None:
    X = federation(K=9)
    X[0] = np.nan
    with pytest.raises(hn.AggregationError, match=r"8 of 9 clients can be used, but Krum\(f=3\) needs at least 9"):
        hn.aggregate(X, hn.Krum(f=3))


def test_fewer_mixtures_than_the_rule_needs(federation: Federation) -> None:
    X = federation(K=10, d=50)
    steps: dict[str, Any] = {"rule": hn.Krum(f=1), "pre": [hn.Bucketing(size=2)]}
    hn.aggregate(X, **steps)
    with pytest.raises(ValueError, match=r"Krum\(f=1\) needs at least 2f\+3 = 5 clients, got 4") as mistake:
        hn.aggregate(X[:8], **steps)
    assert not isinstance(mistake.value, hn.AggregationError)
    X[:2] = np.nan
    with pytest.raises(hn.AggregationError, match=r"Krum\(f=1\) needs at least 5 .* 4 are left; client 0: .* is NaN"):
        hn.aggregate(X, **steps)


def test_all_clients_bad() -> None:
    with pytest.raises(hn.AggregationError, match="0 of 4"):
        hn.aggregate(np.full((4, 10), np.nan))
    with pytest.raises(hn.AggregationError, match="none of the 3 clients can be used"):
        hn.aggregate([None, "x", object()])


@pytest.mark.parametrize("empty", [[], {}, np.empty((0, 5)), ()])
def test_no_clients(empty: Any) -> None:
    with pytest.raises(hn.AggregationError, match="no clients"):
        hn.aggregate(empty)


@pytest.mark.parametrize("first", ["nested", "reversed", "ordered", "numbers"])
def test_the_container_of_one_client_is_not_that_of_the_result(first: str) -> None:
    """The same tensors by the same names: nothing to refuse, but the result is what the others sent."""
    rng = np.random.default_rng(0)
    others = [{"fc.weight": rng.normal(size=(3, 4)), "fc.bias": np.array(0.5)} for _ in range(4)]
    own = {
        "nested": {"fc": {"weight": np.zeros((3, 4)), "bias": np.array(0.5)}},
        "reversed": {"fc.bias": np.array(0.5), "fc.weight": np.zeros((3, 4))},
        "ordered": OrderedDict([("fc.weight", np.zeros((3, 4))), ("fc.bias", np.array(0.5))]),
        "numbers": {"fc.weight": np.zeros((3, 4)), "fc.bias": 0.5},
    }
    for reference in (None, others[0]):
        found = hn.aggregate([own[first], *others], reference=reference)
        assert found.excluded == ()
        assert type(found.value) is dict
        assert list(found.value) == ["fc.weight", "fc.bias"]
        assert isinstance(found.value["fc.bias"], np.ndarray)


def test_a_transposed_reference_is_refused_a_flat_one_is_not() -> None:
    updates = 1 + np.random.default_rng(0).normal(size=(5, 2, 3))
    model = np.arange(6.0).reshape(2, 3)
    expected = hn.aggregate(updates, "norm_clipping", reference=model).value
    for same in (model.reshape(6), model[None], model.reshape(6, 1)):
        np.testing.assert_array_equal(hn.aggregate(updates, "norm_clipping", reference=same).value, expected)
    with pytest.raises(ValueError, match=r"reference has shape \(3, 2\).*expected one client's shape \(2, 3\)"):
        hn.aggregate(updates, "norm_clipping", reference=model.T)


def test_ragged_updates_keep_the_majority_layout() -> None:
    updates = [np.ones(5), np.ones(5), np.ones(4), np.ones(5), np.ones((5, 1))]
    out = hn.aggregate(updates, "mean")
    assert out.excluded == (2, 4)
    with pytest.raises(hn.AggregationError, match="not a majority"):
        hn.aggregate([np.ones(3), np.ones(4)])


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        ((x for x in [np.ones(3)]), r"generator, which can be read only once.*list\(updates\)"),
        (np.ones((3, 4), dtype=complex), "dtype complex128"),
        (np.ones((3, 4), dtype=np.int64), r"dtype int64.*astype"),
        (np.array([[None]]), "dtype object"),
        (np.ones(3), r"shape \(3,\).*reshape\(-1, 1\)"),
        (np.ones((3, 0)), "no values"),
        (np.float32(3), r"shape \(\)"),
        (7, "is a int"),
        ("model.safetensors", "single path"),
        (torch.empty((3, 4), device="meta"), "meta"),
        ([np.ones(0)] * 3, "no float values"),
    ],
)
def test_wrong_updates_say_what_they_are(updates: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hn.aggregate(updates)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rule": "bayesain"}, "bayesian"),
        ({"rule": 3}, "rule is 3"),
        ({"rule": hn.Krum}, r"rule is the class Krum; pass a rule with its settings, Krum\(...\)"),
        ({"pre": [3]}, "pre holds 3"),
        ({"pre": "nn"}, "nnm"),
        ({"pre": None}, "pre is None"),
        ({"sizes": [1, 2]}, "2 entries for 5 updates"),
        ({"sizes": 7}, "sizes is 7"),
        ({"sizes": "12345"}, "sizes is '12345'"),
        ({"reference": np.ones(4)}, r"reference has shape \(4,\)"),
        ({"reference": "model"}, "reference is a str"),
        ({"reference": np.full(10, np.nan)}, r"reference: .* is NaN"),
        ({"rule": hn.Krum(f=2)}, r"Krum\(f=2\) needs at least .*7 clients, got 5"),
        ({"sizes": {"a": 3, "b": 4}}, "sizes names none of the clients: it begins with 'a', but the first client is 0"),
        ({"groups": {"a": 3}}, "groups names none of the clients: it begins with 'a', but the first client is 0"),
    ],
)
def test_wrong_arguments_name_the_value(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        hn.aggregate(np.random.default_rng(0).normal(size=(5, 10)), **arguments)


def test_sizes_are_ignored_unless_the_rule_uses_them(federation: Federation) -> None:
    X = federation()
    absurd = [1e9] * 9 + ["many"]
    np.testing.assert_array_equal(hn.aggregate(X, "median", sizes=absurd).value, hn.aggregate(X, "median").value)
    np.testing.assert_allclose(hn.aggregate(X, sizes=[1e9] * 10).value, hn.aggregate(X).value)  # nobody is larger
    weighted = hn.aggregate(X, hn.Mean(sizes="trusted"), sizes={0: 3, 1: 1})
    np.testing.assert_allclose(weighted.value, 0.75 * X[0] + 0.25 * X[1])


def test_liar_that_looks_central_where_we_sample(federation: Federation) -> None:
    """A client equal to the honest mean on the sampled columns and absurd elsewhere must not spoil the distances."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(9, 40_000)).astype(np.float32)
    X[4] = 0
    for value in (1e12, 1e30, np.nan):
        X[4, 20_700:20_900] = value
        out = hn.aggregate(X)
        assert out.weights is not None
        assert out.weights[4] < 1e-3
        np.testing.assert_allclose(out.value, np.delete(X, 4, axis=0).mean(0), atol=2e-2)


def test_hostile_names_are_cut_and_escaped() -> None:
    name = "\x1b[31mevil\n" * 1000
    updates = [{"w": np.ones(3)} for _ in range(4)] + [{"w": np.ones(3), name: np.ones(2)}]
    out = hn.aggregate(updates, "mean")
    assert "\x1b" not in out.reasons[4]
    assert len(out.reasons[4]) < 250


@pytest.mark.parametrize("rule", ["bayesian", "geometric_median"])
@pytest.mark.parametrize("with_reference", [False, True])
def test_faults_among_clients_that_are_streamed(
    rule: str, with_reference: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms are not read beforehand: the Gram matrix of the sample or the first pass must find unusable clients."""
    monkeypatch.setattr(importlib.import_module("honestly.engine.run"), "STREAM_FROM", 100)
    streamed = importlib.import_module("honestly.rules.bayesian.streamed")
    monkeypatch.setattr(streamed, "SAMPLE", 60)
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 700)).astype(np.float32) + 5.0
    reference = np.full(700, 5.0, np.float32) if with_reference else None
    whole = hn.aggregate(np.delete(X, [*range(0, 400, 25), 399], axis=0), rule, reference=reference)
    X[0:400:25, 600] = np.nan
    X[25, 600], X[50, 3], X[399, 0] = np.inf, 1e30, np.nan
    out = hn.aggregate(X, rule, reference=reference)
    assert out.excluded == (*range(0, 400, 25), 399)
    assert "infinite" in out.reasons[25]
    assert "1e+30" in out.reasons[50]
    assert np.abs(out.value - whole.value).max() < 0.05
    for lost, left in ((300, 95), (400, 0)):
        X[:lost] = np.nan
        with pytest.raises(hn.AggregationError, match=f"only {left} of 400 .*not a majority"):
            hn.aggregate(X, rule, reference=reference)


class Unseen(torch.Tensor):
    """A tensor with a valid layout whose values cannot be read."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.detach, torch.Tensor.numpy):
            raise RuntimeError("boom")
        return super().__torch_function__(func, types, args, kwargs or {})


def freed(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


WITHOUT_VALUES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "layout": (lambda x: x.to_mkldnn(), r"cannot be read \(\w*Error: "),
    "subclass": (lambda x: x.as_subclass(Unseen), r"cannot be read \(RuntimeError: boom"),
    "freed": (freed, r"cannot be read \(ValueError: its storage was freed"),
}


@pytest.mark.parametrize("kind", WITHOUT_VALUES)
def test_a_tensor_without_values_costs_its_own_vote(federation: Federation, kind: str) -> None:
    spoil, reason = WITHOUT_VALUES[kind]
    honest = [torch.from_numpy(x) for x in federation(K=7, d=20).astype(np.float32)]
    out = hn.aggregate([spoil(honest[0]), *honest[1:]])
    assert out.excluded == (0,)
    assert re.search(reason, out.reasons[0]), out.reasons[0]
    torch.testing.assert_close(out.value, hn.aggregate(honest[1:]).value)
    with pytest.raises(hn.AggregationError, match=reason):
        hn.aggregate([spoil(x) for x in honest])
    with pytest.raises(ValueError, match=f"reference {reason}"):
        hn.aggregate(honest, reference=spoil(honest[0]))
    with pytest.raises(ValueError, match=f"updates {reason}"):
        hn.aggregate(spoil(torch.stack(honest)))


@pytest.mark.parametrize(
    "update",
    [
        lambda x: {"a": {"b": x}, "a.b": x + 100},
        lambda x: {1: x, "1": x + 100},
        lambda x: {"a": [x], "a[0]": x + 100},
    ],
)
def test_two_arrays_of_one_name_are_never_mistaken_for_each_other(update: Callable[[Any], Any]) -> None:
    updates = [update(np.full(3, 1.0 + k)) for k in range(5)]
    with pytest.raises(hn.AggregationError, match="two arrays that are both called"):
        hn.aggregate(updates, "mean")
    with pytest.raises(ValueError, match="reference holds two arrays"):
        hn.aggregate([{"a": np.ones(3)}] * 3, reference=updates[0])


def test_masked_values_are_not_averaged(federation: Federation) -> None:
    X = federation(K=7, d=20)
    hidden = np.ma.masked_array(X[2], mask=X[2] > 0)
    out = hn.aggregate([*X[:2], hidden, *X[3:6], np.ma.masked_array(X[6])])
    assert out.excluded == (2,)
    assert "float64 with masked values" in out.reasons[2]
    with pytest.raises(ValueError, match=r"float64 with masked values.*e\.g\. updates\.filled\(0\.0\)"):
        hn.aggregate(np.ma.masked_array(X, mask=X > 0))


def test_an_array_of_integers_is_refused_in_the_words_of_its_library() -> None:
    for updates, remedy in (
        (np.ones((5, 3), np.int32), "updates.astype('float32')"),
        (torch.ones(5, 3).int(), "updates.float()"),
    ):
        with pytest.raises(ValueError, match=f"dtype int32.*e\\.g\\. {re.escape(remedy)}"):
            hn.aggregate(updates)


def test_one_client_cannot_change_the_dtype_of_a_counter(federation: Federation) -> None:
    X = federation(K=7, d=20)
    for odd in (np.uint64, np.int64, np.int8):
        kinds = [odd if k == 0 else np.int32 for k in range(7)]
        out = hn.aggregate([{"w": x, "n": np.array([3 + (k > 3)], kinds[k])} for k, x in enumerate(X)], "mean")
        assert out.value["n"].dtype == np.int32
        assert out.value["n"] == 3
    torches = [{"w": torch.tensor(x), "n": torch.tensor(3, dtype=torch.int32)} for x in X]
    torches[0]["n"] = torch.tensor(3)
    assert hn.aggregate(torches).value["n"].dtype == torch.int32


@pytest.mark.parametrize("rule", ["norm_clipping", "sign_guard", "clipped_clustering", "flame", "cge"])
def test_values_that_overflow_only_about_the_origin(rule: str) -> None:
    settings = {"f": 1} if rule == "cge" else {}
    together = np.full((5, 3), 1e200)  # no distance between them
    with pytest.raises(hn.AggregationError, match=r"only 0 of 5 .* is 1e\+200"):
        hn.aggregate(together, hn.make(rule, **settings))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_root_that_is_no_update_is_the_callers_mistake(federation: Federation, value: float) -> None:
    X = federation(K=7, d=20).astype(np.float32)
    root = np.full(20, value, np.float32)
    with pytest.raises(ValueError, match=r"root: its array at flat index 0 is"):
        hn.aggregate(X, hn.FLTrust(root=root), reference=np.zeros(20, np.float32))
    with pytest.raises(ValueError, match=r"root: tensor 'w' at flat index 0 is"):
        hn.aggregate([{"w": x} for x in X], hn.FLTrust(root={"w": root}))
