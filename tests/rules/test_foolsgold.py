import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules import foolsgold
from honestly.rules.foolsgold import FoolsGold

from .clients import geometry, honest


def naive(cs, kappa):
    """The authors' loop on a matrix of cosines."""
    n = len(cs)
    cs = cs - np.diag(np.diagonal(cs))
    v = cs.max(axis=1)
    for i in range(n):
        for j in range(n):
            if i != j and v[i] < v[j]:
                cs[i, j] *= v[i] / v[j]
    a = np.clip(1 - cs.max(axis=1), 0, 1)
    a = a / a.max()
    a = np.clip(a, 1e-12, 0.99)
    a = np.clip(kappa * (np.log(a / (1 - a)) + 0.5), 0, 1)
    return a / a.sum()


def cosine(histories):
    units = histories / np.linalg.norm(histories, axis=1, keepdims=True)
    return units @ units.T


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kappa", [0.5, 1.0])
@pytest.mark.parametrize("d", [2, 7])
def test_matches_the_loop(seed, kappa, d):
    X = honest(10, d, seed, centre=0.5)
    X[7:] = X[7] + 1e-3 * honest(3, d, seed)
    weights = FoolsGold(kappa=kappa).mix(geometry(X)).matrix[0]
    np.testing.assert_allclose(weights, naive(cosine(X), kappa), atol=1e-9)


def test_sybils_lose_their_weight():
    X = honest(10, 50, centre=0.0)
    X[6:] = X[6]
    weights = FoolsGold().mix(geometry(X)).matrix[0]
    np.testing.assert_allclose(weights[6:], 0.0, atol=1e-9)
    assert (weights[:6] > 0.1).all()


def test_a_client_that_is_opposed_to_all_others_keeps_its_weight():
    X = np.array([[1.0, 0.0], [0.6, 0.8], [-0.95, -0.31]])
    weights = FoolsGold().mix(geometry(X)).matrix[0]
    assert weights[2] == weights.max() > 0


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_clients_in_the_same_direction_get_equal_weights(kind, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0.5, 2.0, size=(5, 1)) * rng.normal(size=2)
    np.testing.assert_allclose(aggregate(X.astype(kind), FoolsGold()).weights, 0.2)


def test_memory_adds_up_over_rounds_and_follows_names():
    first, second = honest(4, seed=1), honest(3, seed=2)
    rule = FoolsGold()
    mix = rule.mix(geometry(first, ids="abcd"))
    rule = rule.after(mix.diagnostics)
    mix = rule.mix(geometry(second, ids="cae"))
    G1, G2 = first @ first.T, second @ second.T
    summed = np.array(
        [
            [G1[2, 2] + G2[0, 0], G1[2, 0] + G2[0, 1], G2[0, 2]],
            [G1[0, 2] + G2[1, 0], G1[0, 0] + G2[1, 1], G2[1, 2]],
            [G2[2, 0], G2[2, 1], G2[2, 2]],
        ]
    )
    norms = np.sqrt(np.diagonal(summed))
    np.testing.assert_allclose(mix.matrix[0], naive(summed / norms[:, None] / norms[None, :], 1.0), atol=1e-9)
    assert mix.diagnostics["memory"].ids == ("b", "d", "c", "a", "e")  # who took part last comes last


def test_clients_that_have_been_away_longest_are_forgotten(monkeypatch):
    """Ids cost nothing: whoever invents new ones in every round must not fill the server's memory."""
    monkeypatch.setattr(foolsgold, "MOST", 5)
    rule = FoolsGold()
    for round, ids in enumerate(["abcd", "ae", "fg", "abcdef"]):
        mix = rule.mix(geometry(honest(len(ids), seed=round), ids=ids))
        rule = rule.after(mix.diagnostics)
        assert rule.memory.ids == [tuple("abcd"), tuple("bcdae"), tuple("daefg"), tuple("abcdef")][round]
        assert rule.memory.products.shape == (len(rule.memory.ids),) * 2
    first, second, third, last = (honest(n, seed=i) for i, n in enumerate((4, 2, 2, 6)))
    norm = rule.memory.products.diagonal() - np.square(last).sum(axis=1)
    kept = [np.square(first[0]).sum() + np.square(second[0]).sum(), 0, 0, np.square(first[3]).sum()]
    np.testing.assert_allclose(norm, [*kept, np.square(second[1]).sum(), np.square(third[0]).sum()], atol=1e-9)


def test_mixing_twice_updates_the_memory_once():
    X = honest(5)
    rule = FoolsGold().after(FoolsGold().mix(geometry(X)).diagnostics)
    np.testing.assert_array_equal(rule.mix(geometry(X)).matrix, rule.mix(geometry(X)).matrix)
    assert rule == FoolsGold()  # memory is no setting
