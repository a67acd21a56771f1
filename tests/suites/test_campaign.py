"""The backdoor that stays believed, searched through the simulator."""

import numpy as np
import pytest
import torch

from honestly.sim.experiment import Experiment
from honestly.studies.campaign import Campaign, Policy, change_policy, describe
from honestly.studies.layers.lies import ROLES

KNOWN = {"clients": 5, "malicious": 2, "attack": "backdoor", "model": "mlp", "epochs": 1, "rounds": 1, "warm_up": 1}


@pytest.fixture(scope="module")
def campaign():
    return Campaign(Experiment.of({**KNOWN, "rule": "bayesian"}))


def test_what_is_sent(campaign):
    d = sum(campaign.federation.layers.values())
    honest, poisoned = torch.zeros(5, d), torch.ones(2, d)
    poisoned[1] = 3.0
    effort = np.array([1.0, 0.0, 0.0, 0.0])
    sent = campaign.make_updates(Policy(2.0, effort), honest, poisoned, 0.5)
    assert not sent[:3].any()
    first = campaign.federation.layers["1.weight"]
    assert sent[3, :first].unique().tolist() == [1.0]
    assert sent[4, :first].unique().tolist() == [3.0]
    assert not sent[3:, first:].any(), "no effort in the other layers"
    shared = campaign.make_updates(Policy(2.0, np.ones(4), shared=True), honest, poisoned, 1.0)
    assert shared[3:].unique().tolist() == [4.0]


@pytest.mark.parametrize("role", ROLES)
def test_attackers_with_a_role_do_not_send_the_lie(campaign, role):
    d = sum(campaign.federation.layers.values())
    honest = torch.arange(5.0)[:, None].expand(5, d)
    sent = campaign.make_updates(Policy(1.0, np.ones(4), role=role, spared=1, target=2), honest, honest[3:] + 10, 1.0)
    assert sent[3].unique().tolist() == [13.0], "the first attacker lies"
    expected = {"idle": 0.0, "mimic": 2.0, "copies": 13.0, "honest": 4.0}
    assert sent[4].unique().tolist() == [expected[role]]


def test_the_search_draws_every_role_and_always_leaves_a_liar(campaign):
    rng = np.random.default_rng(0)
    drawn = [campaign.draw_policy(number, rng) for number in range(200)]
    assert {policy.role for policy in drawn} == {"", *ROLES}
    assert max(policy.spared for policy in drawn) == 1
    words = {word for policy in drawn for word in describe(policy, campaign.federation.layers).split(", ")}
    assert {"1 idle", "1 mimicking", "1 copying the first", "1 training honestly"} <= words


def test_a_lie_is_weakened_until_it_is_believed():
    median = Campaign(Experiment.of({**KNOWN, "rule": "geometric_median"}))
    believed = median.run(Policy(50.0, np.ones(median.L)))
    plain = median.run(Policy(50.0, np.ones(median.L), believed=False))
    assert plain.accused >= 1.0, "one of them may have no image to poison"
    assert believed.accused == 0.0
    assert 0.0 < believed.used < plain.used == 1.0


@pytest.mark.parametrize("believed", [False, True])
def test_a_destroyed_model_ends_the_attack_not_the_campaign(believed):
    mean = Campaign(Experiment.of({**KNOWN, "rule": "mean", "rounds": 3}))
    found = mean.run(Policy(1e16, np.ones(mean.L), believed=believed))
    assert found.value == 0.0, "a model that nobody uses has no backdoor"
    assert believed or found.accuracy < 0.5
    assert np.isfinite([found.asr, found.accused, found.used]).all()


def test_the_search_keeps_the_best_and_says_how_many_it_tried(campaign):
    found = campaign.search(3, np.random.default_rng(0))
    assert found.tries == 3
    assert found.best.asr >= campaign.run(Policy(1.0, np.ones(campaign.L))).asr
    again = campaign.search(3, np.random.default_rng(0))
    assert again.best.asr == found.best.asr
    with pytest.raises(ValueError, match="tries = 0"):
        campaign.search(0, np.random.default_rng(0))


def test_policies_change_a_little_and_can_be_read():
    policy = Policy(1.0, np.ones(4))
    rng = np.random.default_rng(1)
    near = [change_policy(policy, rng) for _ in range(50)]
    assert all(one.effort.any() for one in near)
    assert 0.2 < np.median([one.strength for one in near]) < 5
    assert "own differences on the own update" in describe(policy, {"a": 1, "b": 2, "c": 3, "d": 4})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attack": "sign_flip"}, "give a backdoor"),
        ({"malicious": 0}, "give a backdoor and attackers"),
        ({"model": "cnn_norm"}, "has buffers"),
        ({"chosen": "random"}, "the last ones attack"),
    ],
)
def test_what_it_cannot_do_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Campaign(Experiment.of({**KNOWN, **settings}))
