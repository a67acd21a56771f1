"""Verdicts about each client, and what a custom rule may and may not return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import honestly as hn
from honestly.engine import Pipeline
from honestly.federation import Referee, Reply
from honestly.result import Verdict
from honestly.rules.rule import Geometry, GramGeometry, Mix


@dataclass(frozen=True, kw_only=True)
class Own(hn.Rule):
    """A custom rule that returns what it is given."""

    found: Any

    name: ClassVar[str] = "own"
    summary: ClassVar[str] = "for tests"

    def mix(self, geometry: Geometry) -> Mix:
        return self.found(geometry)


def flat(geometry: Geometry, total: float = 1.0, **found: Any) -> Mix:
    return Mix.of_weights(np.full(geometry.K, total / geometry.K), **found)


def clients(K: int = 10, liars: int = 0) -> np.ndarray:
    X = np.random.default_rng(0).normal(size=(K, 300)) + 2
    X[K - liars :] *= -4
    return X


def test_verdicts_of_the_default_rule() -> None:
    X = clients(10, 3)
    X[1, 5] = np.nan
    updates = {f"c{k}": x for k, x in enumerate(X)}
    out = hn.aggregate(updates)
    assert out.accused == ("c7", "c8", "c9")
    assert out.excluded == ("c1",)
    assert out.malicious == 3
    assert [str(v) for v in out.verdicts][:2] == ["trusted", "excluded"]
    assert "NaN" in out.explanations[1]
    assert len(out.explanations) == len(out.verdicts) == 10
    said = out.summary()
    assert said.startswith("10 clients: 6 trusted, 3 accused (c7, c8, c9), 1 excluded (c1); ")
    assert "\n" not in hn.aggregate({"a\nb": X[0], "c": X[2], "d": X[3]}, "mean").summary()


def test_rules_that_do_not_judge() -> None:
    for rule in ("mean", "median", "geometric_median"):
        out = hn.aggregate(clients(10, 3), rule)
        assert out.accused == ()
        assert out.malicious is None
        assert set(out.verdicts) == {Verdict.TRUSTED}


def test_verdicts_and_evidence_of_a_custom_rule() -> None:
    X = clients(6)
    X[2, 0] = np.inf
    words = [Verdict.TRUSTED, Verdict.UNUSUAL, Verdict.ACCUSED, Verdict.TRUSTED, Verdict.TRUSTED]

    def decide(geometry: Geometry) -> Mix:
        evidence = np.arange(geometry.K * 2.0).reshape(geometry.K, 2)
        return flat(geometry, verdicts=words, explanations=list("abcde"), diagnostics={"layers": evidence})

    out = hn.aggregate(X, Own(found=decide), layers={"one": 100, "two": 200})
    assert [str(v) for v in out.verdicts] == ["trusted", "unusual", "excluded", "accused", "trusted", "trusted"]
    assert out.explanations[3] == "c"
    assert out.accused == (3,)
    assert out.diagnostics["layer_names"] == ("one", "two")
    np.testing.assert_array_equal(out.diagnostics["layers"][[0, 1, 3]], [[0, 1], [2, 3], [4, 5]])
    assert np.isnan(out.diagnostics["layers"][2]).all()


@pytest.mark.parametrize("far", [False, True])
def test_clients_that_send_the_reference_abstain(far: bool) -> None:
    """Also if the reference is too far from the clients to be the centre."""
    model = np.random.default_rng(1).normal(size=300)
    X = clients(9) + model + (1e4 if far else 0)
    X[4] = model
    out = hn.aggregate(X, hn.GeometricMedian(), reference=model)
    assert out.verdicts[4] is Verdict.ABSTAINED
    assert [str(v) for v in out.verdicts].count("abstained") == 1
    accusing = Own(found=lambda g: flat(g, honesty=np.where(np.arange(g.K) == 4, 0.0, 1.0)))
    assert hn.aggregate(X, accusing, reference=model).verdicts[4] is Verdict.ACCUSED
    still = hn.aggregate(np.repeat(model[None], 5, axis=0), hn.GeometricMedian(), reference=model)
    assert Verdict.ABSTAINED not in still.verdicts


def test_a_row_of_weights_for_each_layer() -> None:
    X = clients(5)
    sizes, rows = np.array([100.0, 200.0]), np.array([[0, 0.5, 0.5, 0, 0], [0.2] * 5])
    out = hn.aggregate(X, Own(found=lambda g: Mix.of_layers(rows, g.layer_sizes)), layers=[100, 200])
    np.testing.assert_allclose(out.value[:100], rows[0] @ X[:, :100])
    np.testing.assert_allclose(out.value[100:], rows[1] @ X[:, 100:])
    np.testing.assert_allclose(out.weights, sizes / 300 @ rows)
    parts = [X[:, :100] - rows[0] @ X[:, :100], X[:, 100:] - rows[1] @ X[:, 100:]]
    np.testing.assert_allclose(out.diagnostics["distance"], np.sqrt(sum((p**2).sum(1) for p in parts)), rtol=1e-5)


def test_weights_by_layer_through_a_mixer_and_to_the_reference() -> None:
    X, model = clients(6), np.full(300, 3.0)
    rows = np.array([[0.5, 0.5, 0], [0.25, 0.25, 0.25]])
    own = Own(found=lambda g: Mix.of_layers(rows[:, : g.K], g.layer_sizes))
    pre = hn.Bucketing(size=2, seed=1)
    out = hn.aggregate(X, own, pre=pre, reference=model, layers=[100, 200])
    buckets = pre.mix(GramGeometry(np.eye(6))) @ X
    np.testing.assert_allclose(out.value[:100], rows[0] @ buckets[:, :100])
    np.testing.assert_allclose(out.value[100:], rows[1] @ buckets[:, 100:] + 0.25 * 3.0)


@pytest.mark.parametrize("total", [6.0, 0.5, 0.0])
def test_weights_that_do_not_sum_to_one_are_refused(total: float) -> None:
    rule = Own(found=lambda g: flat(g, total))
    with pytest.raises(ValueError, match=f"weights that sum to {total:g}, expected 1; divide them by their sum"):
        hn.aggregate(clients(), rule)
    if total > 1:
        with pytest.raises(ValueError, match="expected 1, or to less where a reference takes the rest"):
            hn.aggregate(clients(), rule, reference=np.zeros(300))
    else:
        out = hn.aggregate(clients(), rule, reference=np.ones(300))
        np.testing.assert_allclose(out.value, total * clients().mean(0) + (1 - total))


def test_results_of_the_wrong_shape_are_refused() -> None:
    wrong: Mapping[str, Any] = {
        "gave by_layer of shape": lambda g: flat(g, by_layer=np.ones((3, g.K)) / g.K),
        "gave verdicts of length 2, expected 10, one per client": lambda g: flat(g, verdicts=[Verdict.TRUSTED] * 2),
        "gave honesty of length 3": lambda g: flat(g, honesty=np.ones(3)),
        "gave client 2 the honesty nan, expected a probability": lambda g: flat(
            g, honesty=np.array([1, 0, np.nan] + 7 * [1])
        ),
        "gave client 0 the honesty 1.5": lambda g: flat(g, honesty=np.full(10, 1.5)),
        "gave the verdict 1, expected one of trusted, unusual, ": lambda g: flat(g, verdicts=[1] * 10),
        "returned a int, expected a Mix": lambda g: 3,
        "returned a NoneType, expected a Mix": lambda g: None,
        "gave weights that are NaN or infinite": lambda g: Mix(np.full((1, g.K), np.nan)),
        r"gave a matrix of shape \(1, 9\), expected a weight for each of the 10 clients": lambda g: Mix(
            np.ones((1, 9))
        ),
        r"gave a matrix of shape \(1, 1, 10\), expected a weight for each of the 10 clients": lambda g: Mix(
            np.ones((1, 1, g.K))
        ),
        r"gave a matrix of shape \(2, 10\), expected one row": lambda g: Mix(np.full((2, g.K), 1 / g.K)),
    }
    for message, found in wrong.items():
        with pytest.raises(ValueError, match=rf"^Own\(.*\)\.mix {message}"):
            hn.aggregate(clients(), Own(found=found))


def test_two_clients_that_contradict_each_other_are_doubtful() -> None:
    x = np.random.default_rng(0).normal(size=50)
    for other in (-x, 20 * x):
        status = hn.aggregate(np.stack([x, other])).status
        assert status.doubtful
        assert not status.ok
    assert hn.aggregate(np.stack([x, 1.1 * x])).status.ok
    assert hn.aggregate(np.stack([x, -x, -x])).status is not hn.Status.CONTRADICTION
    assert "doubtful" in hn.aggregate(np.stack([x, -x])).summary()


def test_mixers_advance_in_a_federation() -> None:
    referee = Referee("mean", pre=hn.Bucketing(size=2, seed=3))
    seen = []
    for number in range(1, 4):
        seen.append(referee.pipeline.mixers[0])
        referee.judge(number, [Reply(k, update={"w": x}) for k, x in enumerate(clients(6))])
    assert len(set(seen)) == 3
    expected = Pipeline.of("mean", hn.Bucketing(size=2, seed=3)).after({}).mixers[0]
    assert seen[1] == expected


def test_a_pipeline_is_checked_at_construction() -> None:
    with pytest.raises(ValueError, match="rule is 3"):
        Pipeline.of(3)
    with pytest.raises(ValueError, match="pre holds"):
        Pipeline.of("mean", [hn.Mean()])
    with pytest.raises(ValueError, match="pre is 4"):
        Pipeline.of("mean", 4)
    steps = Pipeline.of(hn.Krum(f=1), "bucketing")
    assert steps.needs == {"f", "randomness"}
    assert (steps.minimum(), steps.gram_needed, steps.streams) == (1, True, False)


def test_layered_geometry() -> None:
    X = clients(8)
    cut = [X[:, :50], X[:, 50:]]
    G = GramGeometry.of_layers(np.stack([c @ c.T for c in cut]), judged=np.array([False, True]))
    np.testing.assert_allclose(G.gram, cut[1] @ cut[1].T)
    few = G.subset([1, 4, 5])
    np.testing.assert_array_equal(few.layers[0], G.layers[0][np.ix_([1, 4, 5], [1, 4, 5])])
    A = np.full((3, 8), 1 / 8)
    mixed = G.mixtures(A)
    np.testing.assert_allclose(mixed.layers, A @ G.layers @ A.T)
    np.testing.assert_allclose(mixed.gram, A @ G.gram @ A.T)
    a = np.full(8, 1 / 8)
    np.testing.assert_allclose(G.layer_residuals(a)[1], G.residuals(a))
    assert G.layer_residuals(np.stack([a, a])).shape == (2, 2, 8)
    assert GramGeometry(X @ X.T).layers.shape == (1, 8, 8)


def test_thousands_of_clients_are_measured_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    monkeypatch.setattr(importlib.import_module("honestly.engine.run"), "STREAM_FROM", 20)
    seen: list[Any] = []

    @dataclass(frozen=True, kw_only=True)
    class Streams(Own):
        streams: ClassVar[bool] = True

    def decide(g: Geometry) -> Mix:
        a = np.full(g.K, 1 / g.K)
        seen.append((g.streaming, g.layer_residuals(a), g.residuals(a), g.layer_names))
        return flat(g)

    X = clients(30)
    hn.aggregate(X, Streams(found=decide), layers={"a.weight": 100, "a.running_var": 200})
    (streaming, by_layer, whole, names) = seen[0]
    assert streaming
    assert names == ("a", "a.running_var")
    first = ((X[:, :100] - X[:, :100].mean(0)) ** 2).sum(1)
    np.testing.assert_allclose(whole, first, rtol=1e-5)
    np.testing.assert_allclose(by_layer[0], first, rtol=1e-5)


@pytest.mark.parametrize("rule", ["bayesian", hn.Bayesian(variant="paper"), hn.Krum(f=2)])
def test_excluded_is_not_accused(rule: Any) -> None:
    from honestly.sim.metrics import accused_clients

    updates = 1 + np.random.default_rng(0).normal(size=(10, 1000))
    updates[7:] *= -4
    updates[0] = np.nan
    out = hn.aggregate(updates, rule)
    blamed = accused_clients(out)
    assert out.excluded == (0,)
    assert 0 not in out.accused
    assert blamed is not None
    assert not blamed[0]
    if out.honesty is not None:
        assert out.malicious == len(out.accused)
        assert np.flatnonzero(blamed).tolist() == [7, 8, 9]
