"""The newer rules in training: each withstands an attack that costs the mean much of its accuracy."""

import pytest

from honestly.sim.data import load
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation

DIGITS = load("digits")


def accuracy(rule, attack):
    values = {"clients": 10, "malicious": 3, "rounds": 10, "rule": rule, "attack": attack, "evaluate_every": 10}
    return list(Federation(Experiment.of(values), data=DIGITS).rounds())[-1].numbers["accuracy"]


@pytest.fixture(scope="module")
def of_the_mean():
    return {attack: accuracy("mean", attack) for attack in ("gaussian", "min_max")}


@pytest.mark.parametrize(
    ("rule", "attack"),
    [
        ("rlr", "gaussian"),
        ({"name": "que", "f": 3}, "min_max"),
        ("rflbat", "gaussian"),
        ({"name": "fl_detector", "window": 2}, "gaussian"),
        ("align_ins", "min_max"),
        ("lasa", "min_max"),
        ("freq_fed", "min_max"),
    ],
    ids=str,
)
def test_withstands(rule, attack, of_the_mean):
    assert accuracy(rule, attack) > of_the_mean[attack] + 0.25
