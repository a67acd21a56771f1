import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules import LASA

from .clients import honest


def z(scores):
    return [abs(s - np.median(scores)) / np.std(scores) for s in scores]


def naive(X, model, sizes, sparsity=0.3, radius=1.0):
    """Client by client and layer by layer, from the paper."""
    U = X - model
    middle = np.median([np.linalg.norm(u) for u in U])
    clipped = [u * min(1, middle / np.linalg.norm(u)) for u in U]
    sparse = []
    for u in clipped:
        s = u.copy()
        s[np.argsort(-np.abs(u))[int((1 - sparsity) * len(u)) :]] = 0
        sparse.append(s)
    out, start = model.copy(), 0
    for n in sizes:
        part = slice(start, start + n)
        lengths = [np.linalg.norm(s[part]) for s in sparse]
        purity = []
        for s in sparse:
            signs = np.sign(s[part])
            purity.append(0.5 * (1 + signs.sum() / np.abs(signs).sum() * (1 - sparsity)))
        passed = zip(z(lengths), z(purity), strict=True)
        kept = [k for k, (a, b) in enumerate(passed) if a < radius and b < radius] or range(len(X))
        out[part] += np.mean([clipped[k][part] for k in kept], axis=0)
        start += n
    return out


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("bad", [0, 4])
@pytest.mark.parametrize("sizes", [[90], [40, 30, 20]])
def test_matches_the_loop(sizes, bad, seed):
    X = honest(16, 90, seed)
    model = np.linspace(-1, 1, 90)
    X[16 - bad :, : sizes[0]] *= -3
    out = aggregate(X, LASA(), reference=model, layers=sizes)
    np.testing.assert_allclose(out.value, naive(X, model, sizes), rtol=1e-9)


def test_a_lie_in_one_layer_affects_only_that_layer():
    X = honest(12, 60, centre=0.0) * 0.1 + 1.0
    X[-1, :20] = -1.0
    out = aggregate(X, LASA(radius_n=3.0, radius_s=3.0), reference=np.zeros(60), layers=[20, 40])
    kept = out.diagnostics["kept"]
    assert not kept[0, -1]
    assert kept[1, -1]
    assert kept[:, :-1].all()


def test_buffers_follow():
    dicts = [{"w": x[:8], "bn.running_mean": x[8:]} for x in honest(7, 12)]
    out = aggregate(dicts, LASA(), reference={"w": np.zeros(8), "bn.running_mean": np.zeros(4)})
    assert out.diagnostics["kept"].shape == (1, 7)
    X = np.array([d["bn.running_mean"] for d in dicts])
    clip = np.array([np.linalg.norm(d["w"]) for d in dicts])
    weights = np.where(out.diagnostics["kept"][0], np.minimum(1, np.median(clip) / clip), 0)
    np.testing.assert_allclose(out.value["bn.running_mean"], weights @ X / out.diagnostics["kept"].sum(), rtol=1e-9)
