"""The newer rules in training: each withstands an attack that costs the mean much of its accuracy."""

import pytest

from honestly.sim.data import load
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation

DIGITS = load("digits")
NOISE = {"name": "gaussian", "scale": 10.0}


def accuracy(rule, attack):
    values = {"clients": 10, "malicious": 3, "rounds": 10, "rule": rule, "attack": attack, "evaluate_every": 10}
    return list(Federation(Experiment.of(values), data=DIGITS).rounds())[-1].numbers["accuracy"]


@pytest.fixture(scope="module")
def of_the_mean():
    return {str(attack): accuracy("mean", attack) for attack in (NOISE, "min_max")}


@pytest.mark.parametrize(
    ("rule", "attack"),
    [
        ({"name": "que", "f": 3}, "min_max"),
        ("rflbat", NOISE),
        ({"name": "fl_detector", "window": 2}, NOISE),
        ("align_ins", "min_max"),
        ("lasa", "min_max"),
        ("freq_fed", "min_max"),
        ("deep_sight", NOISE),
        ("rodiloco", NOISE),
    ],
    ids=str,
)
def test_withstands(rule, attack, of_the_mean):
    assert accuracy(rule, attack) > of_the_mean[str(attack)] + 0.25


GUARD = {"clients": 6, "malicious": 0, "rounds": 2, "epochs": 1, "rule": "batch_norm_guard", "model": "cnn_norm"}


class TestBatchNormGuard:
    def test_gets_the_clients_statistics(self):
        run = Federation(Experiment.of(GUARD), data=DIGITS)
        record = list(run.rounds())[-1]
        weights = [w for w in record.numbers["weights"] if w]
        assert 3 <= len(weights) < 6  # it always leaves some out
        assert record.state.model.theta.shape == run.start().model.theta.shape
        assert record.numbers["accuracy"] > 0.1

    def test_a_model_without_statistics_is_refused_before_anything_runs(self):
        values = {**GUARD, "model": "mlp"}
        with pytest.raises(ValueError, match=r"rule batch_norm_guard judges .* model mlp does not have: .* cnn_norm"):
            Federation(Experiment.of(values), data=DIGITS)
