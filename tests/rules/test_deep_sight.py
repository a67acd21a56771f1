import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules import DeepSight
from honestly.rules._lib.density import hdbscan

C, H = 6, 4


def population(K=24, bad=8, seed=0):
    """Clients that move all outputs, the last of them almost only output 3."""
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(C, H)) + 0.1 * rng.normal(size=(K, C, H))
    bias = 0.3 + 0.05 * rng.normal(size=(K, C))
    hidden = rng.normal(size=(K, 7))
    if bad:
        weight[-bad:] *= 0.02
        bias[-bad:] *= 0.02
        weight[-bad:, 3] += 2.0
        bias[-bad:, 3] += 1.0
    return [{"hidden": h, "out.weight": w, "out.bias": b} for h, w, b in zip(hidden, weight, bias, strict=True)]


def reference(fill=0.0):
    return {"hidden": np.full(7, fill), "out.weight": np.full((C, H), fill), "out.bias": np.full(C, fill)}


def flat(state):
    return np.concatenate([np.ravel(part) for part in state.values()])


def naive(clients, model, tau=1 / 3):
    """Client by client, from the paper, except for the outputs on random inputs."""
    U = [{name: state[name] - model[name] for name in state} for state in clients]
    neups, tes = [], []
    for u in U:
        ups = [abs(u["out.bias"][c]) + sum(abs(u["out.weight"][c])) for c in range(C)]
        neup = np.array([up**2 / sum(x**2 for x in ups) for up in ups])
        neups.append(neup)
        tes.append(sum(neup > max(0.01, 1 / C) * neup.max()))
    suspect = [te <= np.median(tes) / 2 for te in tes]
    K = len(U)
    euclid, cosine = np.zeros((K, K)), np.zeros((K, K))
    for i in range(K):
        for j in range(K):
            a, b = U[i]["out.bias"], U[j]["out.bias"]
            euclid[i, j] = np.linalg.norm(neups[i] - neups[j])
            cosine[i, j] = 0.0 if i == j else 1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    merged = np.zeros((K, K))
    for D in (euclid, cosine):
        label = hdbscan(D)
        for i in range(K):
            for j in range(K):
                merged[i, j] += 0.0 if i == j or (label[i] == label[j] and label[i] >= 0) else 0.5
    final = hdbscan(merged)
    kept = []
    for k in range(K):
        mates = [j for j in range(K) if final[j] == final[k]] if final[k] >= 0 else [k]
        if np.mean([suspect[j] for j in mates]) < (tau if final[k] >= 0 else 1):
            kept.append(k)
    bound = np.median([np.linalg.norm(flat(u)) for u in U])
    steps = [flat(U[k]) * min(1, bound / np.linalg.norm(flat(U[k]))) for k in kept]
    return kept, flat(model) + np.mean(steps, axis=0)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("K", "bad"), [(24, 8), (24, 0), (7, 2), (30, 12)])
def test_matches_the_loop(K, bad, seed):
    clients, model = population(K, bad, seed), reference(0.1)
    kept, expected = naive(clients, model)
    out = aggregate(clients, DeepSight(), reference=model)
    assert out.diagnostics["selected"].tolist() == kept
    np.testing.assert_allclose(flat(out.value), expected, rtol=1e-9)


def test_excludes_clients_that_trained_on_one_label():
    out = aggregate(population(), DeepSight(), reference=reference())
    assert out.diagnostics["selected"].tolist() == list(range(16))


def test_flat_updates_need_their_layers():
    X = np.stack([flat(state) for state in population()])
    whole = aggregate(X, DeepSight(), reference=np.zeros(37), layers=[7, C * H, C])
    assert whole.diagnostics["selected"].tolist() == list(range(16))
    with pytest.raises(ValueError, match=r"DeepSight looks at the output layer.*37 values.*layers="):
        aggregate(X, DeepSight(), reference=np.zeros(37))


def test_a_last_layer_without_bias_is_refused():
    with pytest.raises(ValueError, match="7 values, 24 values"):
        aggregate([{"a": s["hidden"], "b": s["out.weight"]} for s in population()], DeepSight())


def test_the_model_is_unchanged_if_no_client_is_kept():
    """Every client is suspect if the median of the exceedings is twice that of each: an unchanged output layer."""
    clients = [{**state, "out.weight": np.zeros((C, H)), "out.bias": np.zeros(C)} for state in population(12, 0)]
    assert aggregate(clients, DeepSight(), reference=reference()).diagnostics["selected"].size == 12
