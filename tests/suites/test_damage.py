"""Kappa beside the damage of training."""

import numpy as np
import pytest

from honestly.sim.experiment import Experiment
from honestly.studies.damage import kappas, steps


def test_kappa_of_the_whole_and_of_the_worst_layer():
    rng = np.random.default_rng(0)
    honest = rng.standard_normal((6, 10)) + 3
    mean = honest.mean(0)
    step = mean.copy()
    assert kappas(step, honest, [4, 6]) == (0.0, 0.0)
    step[4:] += 2.0  # the second layer alone
    whole, layer = kappas(step, honest, [4, 6])
    variance = np.square(honest - mean).sum(1).mean()
    assert whole == pytest.approx(24 / variance)
    assert layer == pytest.approx(24 / np.square(honest - mean)[:, 4:].sum(1).mean())
    assert layer > whole


def test_training_is_measured_round_by_round():
    known = {"rounds": 2, "clients": 5, "epochs": 1, "model": "mlp"}
    quiet = list(steps(Experiment.of({**known, "rule": "mean"})))
    assert [step.round for step in quiet] == [1, 2]
    assert max(step.kappa for step in quiet) < 1e-6
    attacked = list(steps(Experiment.of({**known, "rule": "mean", "attack": "sign_flip", "malicious": 2})))
    assert min(step.kappa for step in attacked) > 0.5
    assert all(step.layer >= step.kappa for step in attacked)
    assert attacked[-1].accuracy < quiet[-1].accuracy
    backdoor = list(steps(Experiment.of({**known, "rule": "mean", "attack": "backdoor", "malicious": 2})))
    assert backdoor[-1].asr is not None
    assert quiet[-1].asr is None


def test_who_attacks_must_be_known():
    with pytest.raises(ValueError, match="the last ones attack"):
        next(steps(Experiment.of({"clients": 4, "chosen": "random", "attack": "sign_flip", "malicious": 1})))
