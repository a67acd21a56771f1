"""Federations recorded by layer: who trains, who is averaged, and what is kept."""

import numpy as np
import pytest

from honestly.sim.rounds import Federation
from honestly.studies.record import plans, record
from honestly.studies.recordings import HONEST

SMALL = ("dataset=digits", "model=mlp", "clients=5", "epochs=1", "poisoned=2", "attack=label_flip")


def recorded(*words):
    (plan,) = plans([*SMALL, *words])
    return record(plan)


def test_layers_rows_and_rounds():
    course = recorded("rounds=1,3")
    assert course.layers == ("1.weight", "1.bias", "3.weight", "3.bias")
    assert course.sizes.tolist() == [64 * 32, 32, 320, 10]
    assert course.rows == (*(HONEST,) * 5, *("label_flip",) * 2)
    assert {r: g.shape for r, g in course.rounds.items()} == {1: (4, 7, 7), 3: (4, 7, 7)}


def test_the_same_updates_as_the_simulators(tmp_path):
    from honestly.sim.run import run
    from honestly.sim.settings import experiment

    words = ["dataset=digits", "model=mlp", "clients=5", "epochs=1", "rule=mean", "rounds=2"]
    run(experiment(words), tmp_path / "run", record=tmp_path / "updates")
    with np.load(tmp_path / "updates" / "round-0002.npz") as file:
        U = file["honest"].astype(np.float64)
    course = recorded("rounds=2", "attack=none")
    np.testing.assert_allclose(course.rounds[2].sum(0), U @ U.T, rtol=1e-4, atol=1e-6)
    weights = U[:, : 64 * 32]
    np.testing.assert_allclose(course.rounds[2][0], weights @ weights.T, rtol=1e-4, atol=1e-6)


def test_poisoned_rows_are_twins_of_the_last_clients():
    course = recorded("rounds=1")
    G = course.rounds[1].sum(0)
    cosines = G / np.sqrt(np.outer(G.diagonal(), G.diagonal()))
    assert (cosines[5:, :5].argmin() >= 0).all()
    assert cosines[5, 6] > cosines[5, 3], "flipped labels err alike"


def test_attacks_that_also_change_updates_do_so_in_a_recording():
    plain, scaled = recorded("rounds=1", "attack=backdoor"), recorded("rounds=1", "attack=model_replacement")
    np.testing.assert_allclose(scaled.rounds[1][:, 5:, 5:], 2.5**2 * plain.rounds[1][:, 5:, 5:], rtol=1e-4, atol=1e-7)
    # Neurotoxin avoids what the model changed in the round before, so it has to remember rounds that are not kept
    plain, avoids = recorded("rounds=2", "attack=backdoor"), recorded("rounds=2", "attack=neurotoxin")
    np.testing.assert_array_equal(plain.rounds[2][:, :5, :5], avoids.rounds[2][:, :5, :5])
    lengths = [course.rounds[2].sum(0).diagonal()[5:] for course in (plain, avoids)]
    assert (lengths[1] < 0.99 * lengths[0]).all()


def test_a_trigger_that_is_learnt_is_learnt_in_a_recording(monkeypatch):
    from honestly.sim.painting import Painter

    rounds = []
    ready = Painter.ready
    monkeypatch.setattr(
        Painter,
        "ready",
        lambda self, state, plan: rounds.append((plan.round, bool(state.attack))) or ready(self, state, plan),
    )
    recorded("rounds=3", "attack=a3fl")
    assert rounds == [(1, False), (2, True), (3, True)]


def test_the_simulators_recordings_hold_what_attackers_sent(tmp_path):
    from honestly.sim.run import run
    from honestly.sim.settings import experiment

    words = ["dataset=digits", "model=mlp", "clients=5", "malicious=2", "epochs=1", "rule=mean", "rounds=1"]
    for attack in ("backdoor", "model_replacement"):
        run(experiment([*words, f"attack={attack}"]), tmp_path / f"run-{attack}", record=tmp_path / attack)
    plain, scaled = (np.load(tmp_path / name / "round-0001.npz") for name in ("backdoor", "model_replacement"))
    np.testing.assert_array_equal(plain["honest"], scaled["honest"])
    np.testing.assert_allclose(scaled["model_replacement"], 2.5 * plain["backdoor"], rtol=1e-4, atol=1e-6)


def test_clients_left_out_are_never_averaged_and_idle_ones_send_nothing():
    everybody, left = recorded("rounds=1,2"), recorded("rounds=1,2", "left_out=2")
    np.testing.assert_array_equal(everybody.rounds[1], left.rounds[1])
    assert not np.allclose(everybody.rounds[2], left.rounds[2])
    assert left.left_out == 2
    idle = recorded("rounds=1,2", "idle=2")
    assert idle.idle == 2
    assert not idle.rounds[2][:, :2].any()
    np.testing.assert_allclose(idle.rounds[1][:, 2:, 2:], everybody.rounds[1][:, 2:, 2:], rtol=1e-5, atol=1e-7)


def test_only_the_first_images_are_used():
    few, all_of_them = recorded("rounds=1", "images=100"), recorded("rounds=1")
    assert not np.allclose(few.rounds[1], all_of_them.rounds[1])
    np.testing.assert_array_equal(recorded("rounds=1", "images=1438").rounds[1], all_of_them.rounds[1])


def test_poisoned_training_that_diverges_is_replaced_by_the_honest_update(monkeypatch):
    class Diverges(Federation):
        def __init__(self, e, **more):
            super().__init__(e, **more)
            if e.attack.name == "label_flip":
                train = self.trainer.train

                def broken(model, schedules):
                    found = train(model, schedules)
                    found.theta[0] = float("nan")
                    return found

                monkeypatch.setattr(self.trainer, "train", broken)

    monkeypatch.setattr("honestly.studies.record.Federation", Diverges)
    gram = recorded("rounds=1").rounds[1]
    assert np.isfinite(gram).all()
    np.testing.assert_array_equal(gram[:, 5, :5], gram[:, 3, :5])
    assert not np.array_equal(gram[:, 6, :5], gram[:, 4, :5])


def test_buffers_are_averaged_and_not_recorded():
    (plan,) = plans(
        ["dataset=digits", "model=cnn_norm", "clients=3", "epochs=1", "batch=128", "poisoned=1", "rounds=2"]
    )
    course = record(plan)
    assert len(course.layers) == 12
    assert not any("running" in name for name in course.layers)


def test_several_values_are_several_courses():
    found = plans(["alpha=0.1,1", "left_out=0,8", "idle=0,2", "rounds=5"])
    assert len({plan.name for plan in found}) == 8
    assert found[-1].name == "digits-cnn-a1-o8-i2-s0"
    assert found[0].poisoned == 9
    assert found[0].attacks == ("label_flip", "backdoor")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rounds"], "not of the form key=value"),
        (["rounds=1,x"], "rounds = 1,x: give whole numbers"),
        (["rounds=0"], "rounds = 0"),
        (["attack=sign_flip"], "unknown data attack 'sign_flip'"),
        (["left_out=15", "idle=5"], "one of 20 clients must train"),
        (["poisoned=21"], "poisoned = 21: there are 20 clients"),
        (["images=3"], "images = 3: give at least one for each of 20 clients"),
        (["participation=0.5"], "all clients take part"),
        (["clints=3"], "did you mean clients"),
        (["alpha=1,1"], "two courses"),
        (["rounds=-1,2"], r"rounds = \[-1, 2\]"),
    ],
)
def test_what_cannot_be_recorded_is_explained(words, message):
    with pytest.raises(ValueError, match=message):
        plans(words)
