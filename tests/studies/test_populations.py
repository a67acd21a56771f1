"""Populations match their names, and files are treated as untrusted."""

import numpy as np
import pytest

from honestly.studies.populations import KINDS, PopulationSource, read_population, sources, synthetic


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("clients", [5, 20])
def test_reproducible_and_seeded(kind, clients):
    first, again = (synthetic(kind, clients=clients, seed=3) for _ in range(2))
    other = synthetic(kind, clients=clients, seed=4)
    assert first.honest.shape == (clients, 2000)
    assert first.root.shape == (2000,)
    np.testing.assert_array_equal(first.honest, again.honest)
    assert not np.array_equal(first.honest, other.honest)


def spectrum(X):
    C = X - X.mean(0)
    return np.linalg.eigvalsh(C @ C.T)[::-1]


def test_each_kind_differs_from_isotropic_in_the_way_it_says():
    X = {kind: synthetic(kind, clients=60, seed=0).honest for kind in KINDS}
    r2 = {kind: np.square(x - x.mean(0)).sum(1) for kind, x in X.items()}
    assert r2["isotropic"].std() < 0.1 * r2["isotropic"].mean()
    assert r2["heavy_tailed"].max() > 4 * np.median(r2["heavy_tailed"])
    norms = np.linalg.norm(X["unequal_norms"], axis=1)
    assert norms.max() > 5 * norms.min()
    low = spectrum(X["low_rank"])
    assert low[:8].sum() > 0.8 * low.sum()
    clusters = spectrum(X["clustered"])
    assert clusters[2] > 4 * clusters[3]


def test_recorded_updates_can_be_read(tmp_path):
    rng = np.random.default_rng(0)
    honest, flipped = rng.normal(size=(6, 9)).astype(np.float32), rng.normal(size=(3, 9)).astype(np.float32)
    np.savez(tmp_path / "round1.npz", honest=honest, label_flip=flipped, reference=honest[0], accuracy=np.float64(0.5))
    population = PopulationSource(str(tmp_path / "round1.npz"), 0).open(4)
    assert population.recorded
    assert population.name == "round1"
    np.testing.assert_array_equal(population.honest, honest[2:])  # the last clients are those that were poisoned
    assert list(population.poisoned) == ["label_flip"]
    np.testing.assert_array_equal(population.poisoned["label_flip"], flipped)


def test_files_that_cannot_be_used_are_explained(tmp_path):
    np.savez(tmp_path / "empty.npz", updates=np.zeros((3, 2)))
    with pytest.raises(ValueError, match="no array 'honest'"):
        read_population(tmp_path / "empty.npz", clients=3)
    np.savez(tmp_path / "few.npz", honest=np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"has 3 clients, but 20 were asked for: use --clients 3"):
        read_population(tmp_path / "few.npz", clients=20)
    np.savez(tmp_path / "nan.npz", honest=np.full((3, 2), np.nan))
    with pytest.raises(ValueError, match="not finite"):
        read_population(tmp_path / "nan.npz", clients=3)
    np.savez(tmp_path / "pickled.npz", honest=np.array([{}, {}], dtype=object))
    with pytest.raises(ValueError, match=r"pickled.npz: it is not an .npz file of plain arrays .*allow_pickle"):
        read_population(tmp_path / "pickled.npz", clients=2)
    whole = (tmp_path / "few.npz").read_bytes()
    np.save(tmp_path / "array.npy", np.zeros((3, 2)))
    for content in (
        b"x",
        b"",
        whole[:-30],
        whole[:60] + bytes(60) + whole[120:],
        (tmp_path / "array.npy").read_bytes(),
    ):
        (tmp_path / "broken.npz").write_bytes(content)
        with pytest.raises(ValueError, match=r"broken.npz: it is not an .npz file of plain arrays"):
            read_population(tmp_path / "broken.npz", clients=3)


def test_names_files_and_folders(tmp_path):
    for name in ("b", "a"):
        np.savez(tmp_path / f"{name}.npz", honest=np.zeros((3, 2)))
    found = sources(["isotropic", str(tmp_path)], seeds=[5, 6])
    assert [(s.name.rsplit("/", 1)[-1], s.seed) for s in found] == [
        ("isotropic", 5),
        ("isotropic", 6),
        ("a.npz", 5),
        ("b.npz", 5),
    ]
    with pytest.raises(ValueError, match="did you mean isotropic"):
        sources(["isotropc"], seeds=[0])
    with pytest.raises(ValueError, match="no such file"):
        sources(["x.npz"], seeds=[0])
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match=r"holds no \.npz"):
        sources([str(tmp_path / "none")], seeds=[0])
