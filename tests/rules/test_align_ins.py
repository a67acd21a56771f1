import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules import AlignIns

from .clients import geometry, honest, value


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def naive(X, model, lambda_c=1.0, lambda_s=1.0, top=0.3):
    """Client by client, from the paper."""
    U = X - model
    principal = np.sign(sum(np.sign(u) for u in U))
    tda, mpsa = [], []
    for u in U:
        tda.append(cosine(u, model))
        mask = np.argsort(-np.abs(u))[: int(top * len(u))]
        mpsa.append(np.mean(np.sign(u)[mask] == principal[mask]))

    def inside(scores, radius):
        return {k for k, s in enumerate(scores) if abs(s - np.median(scores)) / np.std(scores) < radius}

    kept = sorted(inside(tda, lambda_c) & inside(mpsa, lambda_s))
    if not kept:
        return model, kept
    c = np.median([np.linalg.norm(U[k]) for k in kept])
    return model + sum(U[k] * min(1, c / np.linalg.norm(U[k])) for k in kept) / len(kept), kept


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("K", "bad"), [(6, 0), (20, 0), (20, 4)])
def test_matches_the_loop(K, bad, seed):
    X = honest(K, 60, seed, centre=0.3)
    model = np.linspace(-1, 1, 60)
    X[K - bad :] = model - (X[K - bad :] - model)
    expected, kept = naive(X, model)
    mix = AlignIns().mix(geometry(X, reference=model))
    np.testing.assert_array_equal(mix.diagnostics["selected"], kept)
    np.testing.assert_allclose(value(AlignIns(), X, reference=model), expected, rtol=1e-9)


def test_the_model_is_unchanged_if_no_client_is_kept():
    X = np.array([[1.0, 9.0, 1.0], [-9.0, 1.0, -2.0], [2.0, -1.0, -9.0], [-1.0, -8.0, 3.0]])
    model = np.array([1.0, 2.0, 3.0])
    out = aggregate(X, AlignIns(radius_c=1e-9, radius_s=1e-9), reference=model)
    assert out.diagnostics["selected"].size == 0
    np.testing.assert_allclose(out.value, model)


def test_layers_and_flat_updates_agree():
    """The engine passes coordinates layer by layer, and no buffers."""
    X = honest(9, 24)
    reference = np.linspace(1, 2, 24)
    flat = aggregate(X, AlignIns(), reference=reference)
    dicts = [{"a": x[:10].reshape(2, 5), "b": x[10:]} for x in X]
    named = aggregate(dicts, AlignIns(), reference={"a": reference[:10].reshape(2, 5), "b": reference[10:]})
    np.testing.assert_allclose(np.concatenate([named.value["a"].ravel(), named.value["b"]]), flat.value)


@pytest.mark.parametrize("seed", range(20))
def test_of_two_clients_neither_is_usual(seed):
    """Both are exactly one standard deviation from the median, whatever the rounding."""
    X, model = honest(2, 5, seed), np.linspace(-1, 1, 5)
    assert not len(AlignIns().mix(geometry(X, reference=model)).diagnostics["selected"])
