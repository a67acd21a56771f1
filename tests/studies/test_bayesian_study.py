"""The study of the Bayesian rule runs, on the recording of the package if there is no other."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import honestly as hn
from honestly.rules.rule import GramGeometry

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delenv("HONESTLY_DATA", raising=False)


def study(*words):
    command = [sys.executable, str(BENCHMARKS / "bayesian_study.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=100).stdout


PROTOTYPE = """
import numpy as np

def mean_by_layer(grams):
    L, K, _ = grams.shape
    return np.full((L, K), 1 / K), np.ones(K)
"""


def test_parts_rules_and_functions(tmp_path):
    (tmp_path / "own.py").write_text(PROTOTYPE)
    page = tmp_path / "page.md"
    page.write_text("before <!-- quiet -->old<!-- /quiet --> after <!-- other -->kept<!-- /other -->")
    words = ("--rule", "mean", f"{tmp_path / 'own.py'}:mean_by_layer", "--parts", "quiet,layers,adaptive,time")
    limits = ("--only", "cnn-a0.5-o0", "--malicious", "4", "--rounds", "1", "--tries", "5", "--seeds", "1")
    out = study(*words, *limits, "--out", str(tmp_path / "out"), "--page", str(page))
    for text in ("== quiet", "== layers", "== adaptive", "own:mean_by_layer", "5 tries x 1 seeds", "label_flip by 8"):
        assert text in out
    both = [line.split()[2:] for line in out.splitlines() if line.startswith("all ")]
    assert both[0] == both[1], "the mean of every layer is the mean"
    assert "| own:mean_by_layer |" in (tmp_path / "out" / "study.md").read_text()
    assert '"worst_layer"' in (tmp_path / "out" / "cases.jsonl").read_text()
    text = page.read_text()
    assert "old" not in text
    assert "digits-cnn" in text
    assert "kept" in text


def test_the_rule_on_whole_updates_is_kept():
    from whole_update_rule import WholeUpdates

    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 500))
    X[12:16] *= -4
    X[17] = X[16]
    X[18] += 20
    mix = WholeUpdates().mix(GramGeometry(X @ X.T))
    np.testing.assert_allclose(mix.honesty.round(2), [1] * 12 + [0] * 4 + [0.5] * 2 + [0, 1], atol=0.02)
    assert mix.matrix[0][12:16].max() < 1e-3
    assert hn.aggregate(X, WholeUpdates()).honesty is not None


def test_variants_are_changes_of_it():
    from bayesian_variants import CHANGES, Variant
    from whole_update_rule import WholeUpdates

    X = np.random.default_rng(0).normal(size=(20, 500))
    X[12:] += 0.5
    geometry = GramGeometry(X @ X.T)
    kept = WholeUpdates().mix(geometry)
    np.testing.assert_allclose(Variant().mix(geometry).matrix, kept.matrix, atol=1e-9)
    for change in CHANGES:
        assert Variant(change=change).mix(geometry).matrix.sum() == pytest.approx(1.0)
