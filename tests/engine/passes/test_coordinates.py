"""Whole updates, as the engine reads them: from matrices, state dicts, tensors and files alike."""

import numpy as np
import pytest
import torch

import honestly as hn
from honestly.engine.passes import coordinates
from honestly.rules.rule import Mix, Rule

SEEN = []


class Watching(Rule):
    """A rule that keeps the coordinates that it receives."""

    name = "watching"
    summary = "sees"
    needs = frozenset({"updates", "reference"})

    def mix(self, geometry):
        SEEN.append((geometry.coordinates(), geometry.subset([0, 2]).coordinates()))
        return Mix.of_weights(np.full(geometry.K, 1.0 / geometry.K))


def collect(updates, **options):
    SEEN.clear()
    hn.aggregate(updates, Watching(), **options)
    return SEEN[-1][0]


X = np.random.default_rng(0).normal(size=(5, 10)).astype(np.float32)
REFERENCE = np.linspace(-1, 1, 10).astype(np.float32)


def dicts(library):
    return [{"a": library(x[:6].reshape(2, 3)), "n.running_mean": library(x[6:8]), "b": library(x[8:])} for x in X]


@pytest.mark.parametrize("library", [np.array, torch.tensor])
def test_state_dicts_by_layer_without_buffers(library):
    found = collect(dicts(library), reference=dicts(library)[1])
    assert [part.shape for part in found.updates] == [(5, 6), (5, 2)]
    np.testing.assert_allclose(found.updates[0], (X - X[1])[:, :6])
    np.testing.assert_allclose(found.updates[1], (X - X[1])[:, 8:])
    np.testing.assert_allclose(found.reference[0], X[1, :6])


def test_matrices_with_and_without_a_reference_and_layers():
    found = collect(X, reference=REFERENCE, layers=[4, 6])
    np.testing.assert_allclose(np.concatenate(found.updates, axis=1), X - REFERENCE)
    np.testing.assert_allclose(np.concatenate(found.reference), REFERENCE)
    found = collect(X)
    np.testing.assert_allclose(found.updates[0], X)
    assert not found.reference[0].any()


def test_half_precision():
    half = torch.tensor(X).to(torch.bfloat16)
    found = collect(half)
    np.testing.assert_array_equal(found.updates[0], half.float().numpy())


def test_excluded_clients_are_not_shown_and_subsets_are():
    spoilt = X.copy()
    spoilt[1, 3] = np.nan
    found = collect(spoilt, reference=REFERENCE)
    np.testing.assert_allclose(found.updates[0], np.delete(X, 1, axis=0) - REFERENCE)
    np.testing.assert_allclose(SEEN[-1][1].updates[0], (np.delete(X, 1, axis=0) - REFERENCE)[[0, 2]])


def test_behind_mixers_the_mixtures_are_shown():
    collect(X, reference=REFERENCE, pre=[hn.StaticClipping(radius=1.0)])
    U = X - REFERENCE
    clipped = U * np.minimum(1, 1 / np.linalg.norm(U, axis=1, keepdims=True))
    np.testing.assert_allclose(SEEN[-1][0].updates[0], clipped, rtol=1e-5)


def test_files(tmp_path):
    from safetensors.numpy import save_file

    paths = []
    for k, x in enumerate(X):
        paths.append(tmp_path / f"{k}.safetensors")
        save_file({"a": x[:6].copy(), "b": x[6:].copy()}, paths[-1])
    found = collect(paths)
    np.testing.assert_allclose(np.concatenate(found.updates, axis=1), X)


def test_more_than_fits_is_refused_before_it_is_read(monkeypatch):
    monkeypatch.setattr(coordinates, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match=r"whole updates.*use a rule that works from distances"):
        hn.aggregate(X, "lasa")
