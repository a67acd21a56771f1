"""Stragglers in the simulator: late clients, discounted, the same numbers after an interruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from honestly.sim.attacks.none import NoAttack
from honestly.sim.experiment import Experiment, ExperimentError
from honestly.sim.rounds import Federation
from honestly.sim.run import run
from honestly.sim.stragglers import MOST_LATE, first_to_answer, train_late
from honestly.sim.views import look

FAST = {"clients": 12, "epochs": 1, "rounds": 6, "buffer": 5, "delay": 2.0}


def numbers(**settings: Any) -> list[dict[str, Any]]:
    return [record.numbers for record in Federation(Experiment.of({**FAST, **settings})).rounds()]


def test_without_a_buffer_an_experiment_keeps_its_id() -> None:
    e = Experiment.of({"clients": 12})
    assert "buffer" not in e.canonical
    assert "delay" not in e.canonical
    assert Experiment.of({"clients": 12, "buffer": 5}).id != e.id
    assert Experiment.of(json.loads(Experiment.of(FAST).canonical)).id == Experiment.of(FAST).id


def test_a_round_has_the_buffers_size_and_some_clients_are_late() -> None:
    records = numbers(rule="mean")
    assert all(len(r["participants"]) == len(r["staleness"]) == 5 for r in records)
    assert all(max(r["staleness"]) < r["round"] for r in records)
    assert sum(map(sum, (r["staleness"] for r in records))) > 5
    assert records[-1]["accuracy"] > records[0]["accuracy"]


def test_slow_clients_stay_slow() -> None:
    e = Experiment.of({**FAST, "rounds": 400})
    late: dict[int, list[int]] = {k: [] for k in range(12)}
    for round in range(50, 400):
        for k, age in zip(*first_to_answer(e, round), strict=True):
            late[int(k)].append(age)
    means = np.array([np.mean(ages) for ages in late.values()])
    assert max(max(ages) for ages in late.values()) <= MOST_LATE
    assert means.max() > 3 * means.min()
    assert 1.0 < means.mean() < 2.5  # 2, less what the limit cuts off


def test_without_late_clients_it_is_the_average_of_those_who_answered() -> None:
    on_time = numbers(rule="mean", delay=0.0)
    assert all(sum(r["staleness"]) == 0 for r in on_time)
    assert all(r["weights"] is None or max(w for w in r["weights"] if w is not None) == 0.2 for r in on_time)


def test_attackers_without_poison_train_the_same_on_their_clean_data() -> None:
    """Also if they are late: both times from the model that they have."""

    class Both(NoAttack):
        wants_clean = True

    federation = Federation(Experiment.of({**FAST, "malicious": 6, "attack": "sign_flip"}))
    state = [record.state for record in federation.rounds()][-2]
    plan = federation._plan(6)
    assert plan.late is not None
    assert any(age for age, attacks in zip(plan.late, plan.attacking, strict=True) if attacks)
    trained = train_late(federation.trainer, (state.model, *state.past), plan.schedules, plan.late)
    view = look(federation, Both(), state, plan, trained.theta)
    assert view.clean is not None
    np.testing.assert_allclose(view.clean, view.own, atol=1e-6)


@pytest.mark.parametrize("rule", ["bayesian", "median"])
def test_an_interrupted_run_resumes_with_the_same_numbers(tmp_path: Path, rule: str) -> None:
    settings = {**FAST, "rule": rule}
    run(Experiment.of(settings), tmp_path / "whole")
    run(Experiment.of({**settings, "rounds": 3}), tmp_path / "parts")
    run(Experiment.of(settings), tmp_path / "parts")
    whole, parts = ((tmp_path / name / "rounds.jsonl").read_bytes() for name in ("whole", "parts"))
    assert whole == parts


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"buffer": 13}, "only 12 clients"), ({"participation": 0.5}, "participation"), ({"dropout": 0.1}, "dropout")],
)
def test_settings_that_do_not_fit_are_named(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        Experiment.of({**FAST, **wrong})
