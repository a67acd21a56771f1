"""The memory of the Bayesian rule: it helps against persistent attackers, and cannot be used against honest clients."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from honestly.engine import Pipeline
from honestly.rules.bayesian import Bayesian
from honestly.rules.memory import Memory

from .bayesian_rounds import K, d, federation
from .clients import geometry


def rounds(attack, *, T: int, rule: Bayesian, seed: int = 0):
    """Play T rounds; `attack(X, t, rng)` changes the updates in place. Yields each round's result and the next rule."""
    rng = np.random.default_rng(seed)
    for t in range(T):
        X = federation(0, "none", seed=1000 * seed + t)
        attack(X, t, rng)
        mix = rule.mix(geometry(X, ids=[f"client {k}" for k in range(K)]))
        rule = rule.after(mix.diagnostics)
        yield mix, rule


def faint(X, t, rng):
    """Three attackers whose common direction is too weak to be detected in one round."""
    X[17:] += 0.7 * np.random.default_rng([7, t]).normal(size=d) / np.sqrt(d)


def test_it_helps_against_attackers_who_hide_in_the_spread():
    remembered = np.array([mix.honesty for mix, _ in rounds(faint, T=40, rule=Bayesian(memory=Memory()))])
    alone = np.array([mix.honesty for mix, _ in rounds(faint, T=40, rule=Bayesian())])
    assert (remembered[10:, 17:] < 0.5).mean() > (alone[10:, 17:] < 0.5).mean() + 0.05
    assert (remembered[:, :17] >= 0.5).all()  # and nobody else is affected


def test_an_honest_client_cannot_be_framed_by_those_who_copy_it():
    def mimic(X, t, rng):
        X[12:] = X[3]

    for mix, rule in rounds(mimic, T=20, rule=Bayesian(memory=Memory())):
        assert mix.diagnostics["groups"][0][0] == "client 3"
        assert rule.memory is not None
        assert rule.memory.prior(["client 3"])[0] > -0.15


def test_an_honest_client_cannot_be_framed_by_those_who_surround_or_shun_it():
    def shun(X, t, rng):
        """Nine colluders send what is opposite to client 3, to make it look like an outlier."""
        X[11:] = 2 * X.mean(axis=0) - X[3] + 0.3 * rng.normal(size=(9, d)) / np.sqrt(d)

    for mix, rule in rounds(shun, T=20, rule=Bayesian(memory=Memory())):
        assert mix.honesty[3] > 0.5
        assert rule.memory is not None
        assert rule.memory.prior(["client 3"])[0] > np.log(0.5)


def test_trust_cannot_be_saved_up():
    """After fifty honest rounds, an attack is judged as in the first round."""

    def betray(X, t, rng):
        if t == 50:
            X[16:] *= -4

    last = [mix for mix, _ in rounds(betray, T=51, rule=Bayesian(memory=Memory()))][-1]
    X = federation(0, "none", seed=50)
    X[16:] *= -4
    fresh = Bayesian().mix(geometry(X))
    np.testing.assert_allclose(last.honesty, fresh.honesty, atol=5e-3)


def test_suspicion_fades():
    memory = Memory().with_round(["a"], np.array([0.0]))
    seen = [memory.prior(["a"])[0]]
    for _ in range(40):
        memory = memory.with_round(["a"], np.array([1.0]))
        seen.append(memory.prior(["a"])[0])
    assert (np.diff(seen) > 0).all()
    assert seen[-1] > -0.01
    for _ in range(200):
        memory = memory.with_round(["b"], np.array([1.0]))
    assert "a" not in memory.records  # absent clients are forgotten, so the state does not grow forever


def test_state_survives_a_checkpoint():
    *_, (_, rule) = rounds(faint, T=5, rule=Bayesian(memory=Memory(forgetting=0.8)))
    assert rule.memory is not None
    again = Memory.from_dict(json.loads(json.dumps(rule.memory.to_dict())))
    assert again == rule.memory
    X = federation(4, "noise", spread=1.4)
    ids = [f"client {k}" for k in range(K)]
    one = rule.mix(geometry(X, ids=ids))
    other = Bayesian(memory=again).mix(geometry(X, ids=ids))
    np.testing.assert_array_equal(one.matrix, other.matrix)


def test_without_memory_the_rule_stays_the_same():
    rule = Bayesian()
    assert rule.after(rule.mix(geometry(federation(0, "none"))).diagnostics) is rule
    empty = Bayesian(memory=Memory()).mix(geometry(federation(4, "noise")))
    np.testing.assert_array_equal(empty.matrix, rule.mix(geometry(federation(4, "noise"))).matrix)


@pytest.mark.parametrize("forgetting", [-0.1, 1.0, float("nan"), "0.9"])
def test_bad_settings(forgetting):
    with pytest.raises(ValueError, match=r"Memory: forgetting must be a number .*>= 0"):
        Memory(forgetting=forgetting)


@pytest.mark.parametrize("memory", [0.9, True, {"forgetting": 0.9}])
def test_a_number_is_no_memory(memory):
    with pytest.raises(ValueError, match=r"memory must be a Memory such as Memory\(forgetting=0.9\), got"):
        Bayesian(memory=memory)


def test_the_papers_rule_has_no_memory():
    with pytest.raises(ValueError, match="memory must be None"):
        Bayesian(variant="paper", memory=Memory())


def test_a_simulations_state_file_keeps_it():
    from honestly.sim.memory import memory_arrays, with_memory
    from honestly.sim.rounds import State

    *_, (_, rule) = rounds(faint, T=3, rule=Bayesian(memory=Memory()))
    arrays = memory_arrays(State(3, np.zeros(2), Pipeline((), rule)))
    again = with_memory(State(3, np.zeros(2), Pipeline((), Bayesian(memory=Memory()))), arrays)
    assert again.rule == rule


@pytest.mark.parametrize(
    "state",
    [
        None, {}, [], {"records": []}, {"forgetting": 0.9, "records": 5}, {"forgetting": 0.9, "records": [["a", 1]]},
        {"forgetting": "x", "records": []}, {"forgetting": 0.9, "records": [["a", -1, 2]]},
        {"forgetting": 0.9, "records": [["a", math.nan, 2]]}, {"forgetting": 2.0, "records": []},
    ],
)  # fmt: skip
def test_a_damaged_memory_is_refused(state):
    with pytest.raises(ValueError, match=r"not a memory|expected two numbers|forgetting must be"):
        Memory.from_dict(state)
