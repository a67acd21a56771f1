"""Attacks that train with a loss of their own: Chameleon, 3DFed and DarkFed."""

import dataclasses

import numpy as np
import pytest
import torch

from honestly.sim.attacks import View, make
from honestly.sim.attacks.chameleon import contrastive
from honestly.sim.attacks.dark_fed import conspicuousness, shadow_images
from honestly.sim.attacks.vectors import output_layer, rms
from honestly.sim.checkpoint import pack_state, read_state
from honestly.sim.data import load
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation
from honestly.sim.views import look

DIGITS = load("digits")
NAMES = ("chameleon", "three_d_fed", "dark_fed")


def federation(attack, rule="mean", **settings):
    values = {"clients": 8, "malicious": 3, "rounds": 3, "attack": attack, "rule": rule, "model": "mlp", **settings}
    return Federation(Experiment.of(values), data=DIGITS)


def first_view(run):
    """What the attackers see in the first round."""
    state, plan = run.start(), run._plan(1)
    return look(run, run.attack, state, plan, run.trainer.train(state.model, plan.schedules).theta)


def cosine(a, b):
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", ["mlp", "cnn_norm"])
def test_every_attacker_sends_a_finite_update_of_its_own(name, model):
    run = federation(name, model=model, epochs=1)
    sent = run.attack.forge(first_view(run))
    assert torch.isfinite(sent).all()
    assert sent.shape[0] == 3
    assert not torch.equal(sent[0], sent[1])


@pytest.mark.parametrize("name", NAMES)
def test_resumes_with_the_same_bits(name, tmp_path):
    short = {"epochs": 1, "rounds": 3}
    straight = [record.numbers for record in federation(name, **short).rounds()]
    record = next(r for r in federation(name, **short).rounds() if r.state.round == 2)
    (tmp_path / "state-2.bin").write_bytes(pack_state(record.state))
    again = federation(name, **short)
    state = read_state(tmp_path / "state-2.bin", again.start())
    assert [r.numbers for r in again.rounds(state)] == straight[2:]


@pytest.mark.parametrize(("name", "asr"), [("chameleon", 0.8), ("three_d_fed", 0.8), ("dark_fed", 0.3)])
def test_plants_a_backdoor_in_a_mean(name, asr):
    last = list(federation(name, rounds=10, clients=10, malicious=4).rounds())[-1].numbers
    assert last["asr"] > asr
    assert last["accuracy"] > 0.7


def test_the_features_are_what_the_last_layer_gets():
    run = federation("chameleon", epochs=1)
    shop = first_view(run).workshop()
    images, last, thetas = shop.images[:15].view(3, 5, *shop.images.shape[1:]), run.module[-1], shop.start()
    found = shop.features(thetas, images)
    torch.testing.assert_close(last(found), shop.logits(thetas, images))
    assert found.shape == (3, 5, last.in_features)


def test_descend_is_sgd_with_momentum():
    shop = dataclasses.replace(first_view(federation("chameleon", epochs=1)).workshop(), batch=1, momentum=0.5)
    goals = torch.tensor([[1.0, 2.0], [4.0, 5.0]])
    found = shop.descend(
        torch.zeros(2, 2), lambda w, _: ((w - goals) ** 2).sum(), np.random.default_rng(0), epochs=1, rate=0.1,
        samples=[np.arange(3), np.arange(1)], moves=torch.tensor([1.0, 0.0]),
    )  # fmt: skip
    for k, goal in enumerate((1.0, 4.0)):
        w = v = 0.0
        for _ in range(3):  # as many steps for the second, which has one sample
            v = 0.5 * v + 2 * (w - goal)
            w -= 0.1 * v
        torch.testing.assert_close(found[k], torch.tensor([w, 0.0]))


def test_descend_uses_every_sample_once_per_pass_and_skips_attackers_without_data():
    shop = dataclasses.replace(first_view(federation("chameleon", epochs=1)).workshop(), batch=2)
    seen = []

    def loss(w, rows):
        seen.append(rows.numpy())
        return w.sum()

    samples = [np.arange(10, 15), np.arange(0), np.arange(2)]
    found = shop.descend(torch.zeros(3, 1), loss, np.random.default_rng(0), epochs=1, samples=samples)
    rows = np.concatenate(seen, axis=1)
    assert set(rows[0, :5]) == set(range(10, 15))
    assert sorted(rows[2]) == [0, 0, 0, 1, 1, 1]
    assert found[1] == 0.0
    assert (found[[0, 2]] < 0.0).all()


def test_output_layer_needs_weight_and_bias_that_fit():
    assert output_layer([10, 20, 4], 34) == (slice(10, 30), slice(30, 34))
    assert output_layer([], 34) is None
    assert output_layer([30, 4], 34) is None
    assert output_layer([4, 30], 34) is None


class TestChameleon:
    def test_the_loss_matches_loops(self):
        z = torch.nn.functional.normalize(torch.from_numpy(np.random.default_rng(0).normal(size=(9, 4))), dim=1)
        labels = torch.tensor([0, 1, 1, 2, 2, 2, 8, 8, 3])
        T, total = 0.3, 0.0
        for i in range(9):
            pairs = [p for p in range(9) if p != i and labels[p] == labels[i]]
            below = sum(torch.exp(z[i] @ z[a] / T) for a in range(9) if a != i)
            logs = [torch.log(torch.exp(z[i] @ z[p] / T) / below) for p in pairs]
            if logs:
                total -= (2.0 if labels[i] == 8 else 1.0) * sum(logs) / len(logs)
        torch.testing.assert_close(contrastive(z, labels, T, 8, 2.0), total / 9)

    def test_poisoned_images_come_to_look_like_the_target_class(self):
        run = federation("chameleon", alpha=100.0)
        seen = first_view(run)
        shop = seen.workshop()
        mine = torch.as_tensor(shop.samples[0])
        poisoned = shop.poisoned[mine]
        target = (shop.labels[mine] == 8) & ~poisoned

        def likeness(theta):
            z = torch.nn.functional.normalize(shop.features(theta[None], shop.images[mine][None])[0], dim=1)
            return float((z[poisoned] @ z[target].T).mean())

        assert likeness(shop.theta + run.attack.forge(seen)[0]) > likeness(shop.theta + seen.own[0]) + 0.1

    def test_the_second_stage_moves_the_output_layer_alone(self):
        run = federation({"name": "chameleon", "epochs": 0}, epochs=1)
        seen = first_view(run)
        weight, bias = output_layer(seen.layers, seen.own.shape[1])
        sent = run.attack.forge(seen)
        assert not sent[:, : weight.start].any()
        assert sent[:, weight].any()
        assert sent[:, bias].any()


def three(M=4, **more):
    """A view with an output layer of 3 classes, as 3DFed wants one."""
    rng = np.random.default_rng(0)
    own, clean = rng.normal(size=(M, 30)), rng.normal(size=(M, 30))
    return View(own=own, clean=clean, rng=rng, clients=10, layers=(15, 12, 3), **more)


class TestThreeDFed:
    attack = make("three_d_fed", target=2)

    def after(self, accepted, M=4, **memory):
        """Alpha and decoys after a round in which the model changed by these shares of the indicators."""
        seen = three(M, reference=np.zeros(30))
        held = {**self.attack.remember(seen, self.attack.forge(seen)), **memory}
        change = np.zeros(30)
        change[held["place"]] = np.asarray(accepted) * held["value"]
        return self.attack.tune(dataclasses.replace(three(M, reference=change), memory=held)), held

    def test_the_masks_cancel_and_spare_the_target(self):
        seen = three()
        masks = self.attack._masks(seen, seen.own[0], 4, 0.9)
        np.testing.assert_allclose(masks.sum(axis=0), 0.0, atol=1e-12)
        assert not masks[:, :15].any()  # not the layers before
        assert not masks[:, [*range(23, 27), 29]].any()  # nor the target's neuron
        assert masks[:, 15:23].all()

    def test_a_larger_alpha_makes_larger_masks(self):
        seen = three()
        sizes = [np.linalg.norm(self.attack._masks(seen, seen.own[0], 4, alpha)) for alpha in (0.01, 0.8, 0.99)]
        assert sizes[0] < sizes[1] < sizes[2]

    def test_a_backdoor_is_scaled_to_honest_length_at_most_by_k_over_m(self):
        seen = three()
        for factor, expected in ((0.5, 1.0), (1e-3, 2.5e-3), (3.0, 3.0)):
            own = np.tile(factor * seen.clean[0], (4, 1))
            one = dataclasses.replace(seen, own=own, clean=np.tile(seen.clean[0], (4, 1)), layers=())
            sent = self.attack.forge(one).mean(axis=0)
            assert np.linalg.norm(sent) == pytest.approx(expected * np.linalg.norm(seen.clean[0]), rel=0.1)

    def test_the_indicators_sit_where_nothing_moves(self):
        seen = three(reference=np.zeros(30))
        sent = self.attack.forge(seen)
        held = self.attack.remember(seen, sent)
        moves = np.abs(seen.own.mean(axis=0)) + np.abs(seen.clean.mean(axis=0))
        assert set(held["place"]) == set(np.argsort(moves)[:4])
        np.testing.assert_allclose(held["value"], sent[np.arange(4), held["place"]])

    def test_accepted_attackers_change_nothing(self):
        (alpha, decoys), held = self.after([0.1] * 4)
        assert (alpha, decoys) == (held["alpha"], 0)

    def test_if_nobody_is_accepted_alpha_moves_and_one_becomes_a_decoy(self):
        (alpha, decoys), held = self.after([0.0] * 4)
        assert decoys == 1
        assert alpha != held["alpha"]
        assert 0.4 <= alpha < 1.0

    def test_an_accepted_decoy_returns(self):
        (_, decoys), _ = self.after([0.0, 0.0, 0.0, 0.1], decoys=np.array(1))
        assert decoys == 0

    @pytest.mark.parametrize("noise", [-0.5, 3.0])
    def test_noise_fixes_alpha(self, noise):
        (alpha, _), _ = self.after([0.1, noise, 0.1, 0.1])
        assert alpha == 0.1
        (alpha, decoys), _ = self.after([0.0] * 4, alpha=np.array(0.1))
        assert (alpha, decoys) == (0.1, 0)  # for all later rounds

    @pytest.mark.parametrize("seed", range(8))
    def test_tuning_matches_loops_as_in_the_public_code(self, seed):
        rng = np.random.default_rng(seed)
        attackers, decoys = int(rng.integers(2, 7)), int(rng.integers(0, 3))
        feedback = rng.choice([0.0, 0.03, 0.1], attackers + decoys)
        status = []
        for value in feedback:
            if value <= 1e-5:
                status.append("rejected")
            else:
                status.append("clipped" if value <= 0.8 * max(feedback) else "accepted")
        wanted = max(decoys - status[attackers:].count("accepted"), 0)
        if set(status[:attackers]) == {"rejected"} and "accepted" not in status[attackers:]:
            wanted += 1
        keeps = status[:attackers].count("accepted") >= 0.8 * attackers
        (alpha, count), held = self.after(feedback, M=attackers + decoys, decoys=np.array(decoys))
        assert count == wanted
        assert (alpha == held["alpha"]) == keeps

    def test_a_decoy_is_clean_but_for_one_far_parameter(self):
        seen = three()
        sent = make("three_d_fed", target=2, decoys=1).forge(seen)
        away = np.abs(sent[3] - seen.clean[3])
        assert (away > 1e-9).sum() == 2  # the far parameter and the indicator
        assert away.max() == pytest.approx(3.0 * np.linalg.norm(seen.clean, axis=1).mean())
        assert rms(sent[:3].mean(axis=0)) < 3.0

    def test_there_is_always_an_attacker_left(self):
        (_, decoys), _ = self.after([0.0], M=1)
        assert decoys == 0

    def test_the_trigger_is_kept_when_the_number_of_attackers_changes(self):
        _, held = self.after([0.0] * 4)
        seen = dataclasses.replace(three(2, reference=np.ones(30)), memory=held)
        assert self.attack.tune(seen) == (held["alpha"], 0)


class TestDarkFed:
    def test_no_data_is_looked_at(self):
        run = federation("dark_fed", epochs=1)
        seen = first_view(run)
        shop = seen.workshop()
        shop = dataclasses.replace(shop, images=0 * shop.images, labels=0 * shop.labels)
        blind = dataclasses.replace(seen, own=0 * seen.own, workshop=lambda: shop, rng=np.random.default_rng(5))
        again = dataclasses.replace(seen, rng=np.random.default_rng(5))
        assert torch.equal(run.attack.forge(blind), run.attack.forge(again))

    def test_the_updates_are_shorter_and_less_alike_than_without_the_constraints(self):
        def sent(**settings):
            run = federation({"name": "dark_fed", **settings})
            return run.attack.forge(first_view(run))

        free, held = sent(magnitude=0.0, direction=0.0), sent(magnitude=0.5, direction=2.0)
        assert held.norm(dim=1).mean() < free.norm(dim=1).mean()
        assert abs(cosine(held[0], held[2])) < abs(cosine(free[0], free[2]))

    def test_the_last_change_of_the_model_is_avoided(self):
        run = federation({"name": "dark_fed", "direction": 5.0})
        seen = first_view(run)
        first = run.attack.forge(seen)[0]
        memory = {"model": seen.reference - first}  # the model moved as the attacker wants to move it
        seen = dataclasses.replace(seen, memory=memory, rng=np.random.default_rng(0))
        assert abs(cosine(run.attack.forge(seen)[0], first)) < 0.9

    @pytest.mark.parametrize("known", [True, False])
    def test_lengths_and_cosines_match_loops_as_in_the_public_code(self, known):
        rng = np.random.default_rng(0)
        updates, change = rng.normal(size=(4, 9)), rng.normal(size=9) if known else None
        lengths = cosines = 0.0
        for i, u in enumerate(updates):
            lengths += np.linalg.norm(u)
            for v in (*updates[:i], *([] if change is None else [change])):
                cosines += (u @ v / np.linalg.norm(u) / np.linalg.norm(v)) ** 2
        found = conspicuousness(torch.from_numpy(updates), None if change is None else torch.from_numpy(change))
        np.testing.assert_allclose([float(value) for value in found], [lengths, cosines], rtol=1e-12)

    def test_shadow_images_use_the_whole_range(self):
        images = shadow_images(5, (3, 8, 9), np.random.default_rng(0))
        assert images.shape == (5, 3, 8, 9)
        assert images.dtype == np.uint8
        assert images.min() == 0
        assert images.max() == 255
