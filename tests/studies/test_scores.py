"""Detection and calibration against definitions written out."""

import numpy as np
import pytest

from honestly.studies.scores import calibration_error, detection_auc, reliability


def test_auc_is_the_share_of_pairs_in_the_right_order():
    rng = np.random.default_rng(0)
    score, liar = rng.integers(0, 4, 30) / 4, rng.random(30) < 0.4
    pairs = [(a > b) + 0.5 * (a == b) for a in score[~liar] for b in score[liar]]
    assert detection_auc(score, liar.tolist()) == pytest.approx(np.mean(pairs))
    assert detection_auc(np.zeros(4), [True, False, False, False]) == 0.5
    assert detection_auc(score, [False] * 30) is None
    assert detection_auc(score, [True] * 30) is None


def test_probabilities_that_are_true_are_calibrated():
    rng = np.random.default_rng(1)
    said = rng.random(50_000)
    true = rng.random(50_000) < said
    curve = reliability(said.tolist(), true.tolist())
    assert len(curve) == 10
    assert all(abs(b.stated - b.true) < 0.03 for b in curve)
    assert calibration_error(curve) < 0.02
    overconfident = reliability(np.round(said).tolist(), true.tolist())
    assert calibration_error(overconfident) == pytest.approx(0.25, abs=0.02)


def test_every_statement_falls_into_a_bin():
    curve = reliability([0.0, 0.05, 0.999, 1.0], [True, False, True, True])
    assert [(b.low, b.count) for b in curve] == [(0.0, 2), (0.9, 2)]
    assert calibration_error([]) is None
