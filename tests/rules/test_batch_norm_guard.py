import itertools

import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules import NNM, BatchNormGuard
from honestly.rules._lib.kmeans import two_means


def population(K=12, bad=4, seed=0, names=("running_mean", "running_var")):
    """State dicts of models with two BatchNorm layers; the last clients saw brighter images."""
    rng = np.random.default_rng(seed)
    clients = []
    for k in range(K):
        brighter = 1.0 if k >= K - bad else 0.0
        clients.append({
            "conv.weight": rng.normal(size=5),
            f"bn1.{names[0]}": 0.1 * rng.normal(size=8) + 0.5 * brighter,
            f"bn1.{names[1]}": 1.0 + 0.1 * rng.random(8) + 2.0 * brighter,
            f"bn2.{names[0]}": rng.normal(size=3),
            f"bn2.{names[1]}": 1.0 + rng.random(3),
        })  # fmt: skip
    return clients


def features(client):
    mean, variance = client["bn1.running_mean"], client["bn1.running_var"]
    return np.array([variance.mean(), variance.var(ddof=1), mean.mean(), mean.var(ddof=1)])


def best_pair(F):
    """The split in two with the smallest sum of squares, by trying all splits."""

    def cost(side):
        rest = [k for k in range(len(F)) if k not in side]
        return sum(((F[list(part)] - F[list(part)].mean(axis=0)) ** 2).sum() for part in (side, rest))

    K = len(F)
    return min((c for n in range(1, K // 2 + 1) for c in itertools.combinations(range(K), n)), key=cost)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("bad", [0, 2, 4])
def test_keeps_the_larger_of_the_best_two_clusters(bad, seed):
    clients = population(11, bad, seed)
    small = best_pair(np.stack([features(client) for client in clients]))
    kept = [k for k in range(11) if k not in small]
    out = aggregate(clients, BatchNormGuard())
    assert out.diagnostics["selected"].tolist() == kept
    for name, value in out.value.items():
        np.testing.assert_allclose(value, np.mean([clients[k][name] for k in kept], axis=0))


@pytest.mark.parametrize("names", [("running_mean", "running_var"), ("moving_mean", "moving_variance")])
@pytest.mark.parametrize("buffers", ["follow", "judge", "ignore"])
def test_buffers_are_known_by_their_names(names, buffers):
    out = aggregate(population(names=names), BatchNormGuard(), buffers=buffers)
    assert out.diagnostics["selected"].tolist() == list(range(8))


def test_flax_and_flat_updates_with_layers():
    clients = population()
    named = [{"params": {"w": c["conv.weight"]}, "batch_stats": {"bn": {"mean": c["bn1.running_mean"],
              "var": c["bn1.running_var"]}}} for c in clients]  # fmt: skip
    assert aggregate(named, BatchNormGuard()).diagnostics["selected"].tolist() == list(range(8))
    X = np.stack([np.concatenate(list(c.values())) for c in clients])
    layers = {name: part.size for name, part in clients[0].items()}
    assert aggregate(X, BatchNormGuard(), layers=layers).diagnostics["selected"].tolist() == list(range(8))


def test_statistics_are_mixed_with_the_clients():
    """Behind a mixer the rule sees the statistics of the mixtures."""
    clients = population(12, 4)
    out = aggregate(clients, BatchNormGuard(), pre=[NNM(f=5)])
    assert out.diagnostics["features"].shape == (12, 4)
    low, high = (extreme([features(c)[0] for c in clients]) for extreme in (min, max))
    assert (out.diagnostics["features"][:, 0] > low).all()
    assert (out.diagnostics["features"][:, 0] < high).all()


def test_a_model_without_statistics_is_an_error():
    with pytest.raises(ValueError, match=r"BatchNormGuard judges clients by BatchNorm's running means.*have none"):
        aggregate(np.eye(5), BatchNormGuard())


def test_one_client_and_equal_clients():
    clients = population(1, 0)
    np.testing.assert_allclose(aggregate(clients, BatchNormGuard()).value["conv.weight"], clients[0]["conv.weight"])
    assert len(aggregate(clients * 5, BatchNormGuard()).diagnostics["selected"]) == 5


@pytest.mark.parametrize("seed", range(10))
def test_two_means_finds_the_best_of_all_splits(seed):
    F = np.random.default_rng(seed).normal(size=(9, 3)) + np.repeat([0.0, 2.0], [4, 5])[:, None]
    label = two_means(F)
    small = frozenset(best_pair(F))
    assert {frozenset(np.flatnonzero(label == c).tolist()) for c in (0, 1)} == {small, frozenset(range(9)) - small}
