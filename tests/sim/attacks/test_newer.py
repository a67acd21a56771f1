"""The attacks of 2022 to 2026: each does in training what its paper says, and remembers what it must."""

import dataclasses

import numpy as np
import pytest
import torch

from honestly.engine import Pipeline
from honestly.rules import GeometricMedian, Median
from honestly.sim.attacks import View, make
from honestly.sim.checkpoint import pack_state, read_state
from honestly.sim.data import load
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation
from honestly.sim.views import clean_models, success

DIGITS = load("digits")


def federation(attack, rule="mean", **settings):
    values = {"clients": 10, "malicious": 4, "rounds": 6, "attack": attack, "rule": rule, **settings}
    return Federation(Experiment.of(values), data=DIGITS)


def numbers(attack, rule="mean", **settings):
    return [record.numbers for record in federation(attack, rule, **settings).rounds()]


@pytest.fixture(scope="module")
def honest():
    """Accuracy without attack, round by round."""
    return [round["accuracy"] for round in numbers("none")]


def view(**more):
    rng = np.random.default_rng(3)
    X = rng.normal(0.5, 1.0, (9, 6))
    return View(own=X[6:], others=X[:6], rng=rng, clients=9, **more)


def rounds_of(attack, models, own=None):
    """What the attack sends while the server's model takes these values."""
    memory, sent = {}, []
    for model in models:
        seen = View(own=np.ones((2, len(model))) if own is None else own, reference=model, memory=memory, clients=5,
                    rng=np.random.default_rng(0))  # fmt: skip
        forged = attack.forge(seen)
        memory = attack.remember(seen, forged)
        sent.append(forged[0])
    return sent, memory


class TestPoisonedFL:
    def test_the_direction_is_the_same_in_all_rounds(self):
        models = np.random.default_rng(0).normal(size=(5, 40)).cumsum(axis=0)
        sent, _ = rounds_of(make("poisoned_fl"), models)
        signs = np.sign(sent)
        assert (signs == signs[0]).all()
        assert len({round(float(np.linalg.norm(g)), 6) for g in sent}) == 5

    def test_matches_the_formula(self):
        w = np.random.default_rng(1).normal(size=(3, 7))
        attack = make("poisoned_fl", factor=3.0)
        sent, _ = rounds_of(attack, w)
        s, g = np.sign(sent[0]), w[2] - w[1]
        v = np.abs(g - np.linalg.norm(g) / np.linalg.norm(sent[1]) * sent[1])
        np.testing.assert_allclose(sent[2], 3.0 * np.linalg.norm(g) * v / np.linalg.norm(v) * s)

    @pytest.mark.parametrize(("follows", "factor"), [(True, 4.0), (False, 4.0 * 0.5)])
    def test_the_length_shrinks_unless_the_model_follows(self, follows, factor):
        attack = make("poisoned_fl", factor=4.0, beta=0.5, window=3)
        s = np.sign(rounds_of(attack, np.zeros((1, 100)))[0][0])
        step = s if follows else np.where(np.arange(100) % 2, s, -s)
        _, memory = rounds_of(attack, [i * step + 1e-3 * i for i in range(5)])
        assert float(memory["factor"]) == factor

    def test_the_factor_stays_above_a_half(self):
        attack = make("poisoned_fl", factor=0.6, beta=0.5, window=1)
        _, memory = rounds_of(attack, [i * np.resize([1.0, -1.0], 30) for i in range(6)])
        assert float(memory["factor"]) == 0.6

    def test_destroys_a_mean(self, honest):
        assert numbers("poisoned_fl")[-1]["accuracy"] < 0.3 < honest[-1] - 0.3

    def test_resumes_with_the_same_bits(self, tmp_path):
        straight = [r.numbers for r in federation({"name": "poisoned_fl", "window": 2}).rounds()]
        first = federation({"name": "poisoned_fl", "window": 2})
        record = next(r for r in first.rounds() if r.state.round == 3)
        (tmp_path / "state-3.bin").write_bytes(pack_state(record.state))
        again = federation({"name": "poisoned_fl", "window": 2})
        state = read_state(tmp_path / "state-3.bin", again.start())
        assert set(state.attack) == {"model", "sent", "factor", "start", "age"}
        assert [r.numbers for r in again.rounds(state)] == straight[3:]


class TestXFED:
    def test_matches_the_formula(self):
        w = np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 5.0], [3.0, 7.0]])
        sent, _ = rounds_of(make("xfed", z=2.0), w, own=np.array([[3.0, 4.0], [1.0, 0.0]]))
        h = np.array([5.0, 1.0, 2.0])
        length = np.median(h) + 2.0 * 1.4826 * np.median(np.abs(h - np.median(h)))
        np.testing.assert_allclose(sent[3], -length * np.array([0.6, 0.8]))

    def test_attackers_know_nothing_of_each_other(self):
        seen = view(reference=np.ones(6), memory={"model": np.zeros(6)})
        alone = dataclasses.replace(seen, own=seen.own[:1], others=None)
        np.testing.assert_allclose(make("xfed").forge(seen)[0], make("xfed").forge(alone)[0])

    def test_looks_as_unlike_as_honest_clients(self):
        """Nothing is copied: the attackers agree with each other as much as their honest updates do."""
        seen = view()
        np.testing.assert_allclose(np.corrcoef(make("xfed").forge(seen)), np.corrcoef(seen.own))

    def test_slows_a_mean_down(self, honest):
        attacked = [round["accuracy"] for round in numbers("xfed")]
        assert np.mean(attacked) < np.mean(honest) - 0.15


class TestNeurotoxin:
    def test_spares_what_the_model_changed_most_in_each_layer(self):
        change = np.array([9.0, 1.0, -8.0, 0.1, 5.0, 0.0, 0.2, 0.3])
        seen = View(own=np.ones((2, 8)), reference=change, memory={"model": np.zeros(8)}, layers=(4, 4),
                    rng=np.random.default_rng(0))  # fmt: skip
        np.testing.assert_array_equal(make("neurotoxin", share=0.25).forge(seen)[0], [0, 1, 1, 1, 0, 1, 1, 1])

    def test_plants_a_backdoor_in_a_mean(self):
        last = numbers("neurotoxin", rounds=14)[-1]
        assert last["asr"] > 0.8
        assert last["accuracy"] > 0.8


class TestCriticalLayers:
    @staticmethod
    def wins(models):
        """Two of four layers carry the backdoor."""
        return (np.asarray(models)[:, [1, 3]] > 0).all(axis=1).astype(float)

    def test_finds_the_layers_and_leaves_the_others_honest(self):
        seen = View(own=np.ones((2, 4)), clean=-np.ones((2, 4)), layers=(1, 1, 1, 1), reference=np.zeros(4),
                    success=self.wins, rng=np.random.default_rng(0))  # fmt: skip
        np.testing.assert_array_equal(make("critical_layers").forge(seen)[0], [-1, 1, -1, 1])
        np.testing.assert_array_equal(make("critical_layers", strength=0.5).forge(seen)[0], [-1, 0, -1, 0])
        np.testing.assert_array_equal(make("critical_layers", strength=3.0).forge(seen)[0], [-1, 3, -1, 3])

    def test_plants_a_backdoor_with_few_layers(self):
        run = federation("critical_layers", rounds=14)
        attack, sizes = run.attack, []
        found = type(attack).critical

        def watched(self, seen):
            layers = found(self, seen)
            sizes.append(len(layers))
            return layers

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(attack), "critical", watched)
            last = [record.numbers for record in run.rounds()][-4:]
        assert max(one["asr"] for one in last) > 0.6  # it comes and goes, on each CPU in other rounds
        assert last[-1]["accuracy"] > 0.8
        assert np.mean(sizes) < len(run.layers) / 2


class TestHybridSparse:
    def test_matches_the_formula(self):
        seen = view(reference=np.arange(1.0, 7.0), layers=(3, 3))
        mu, sigma = seen.others.mean(axis=0), seen.others.std(axis=0)
        forged = make("hybrid_sparse", share=0.3, aggressive=7.0, z=0.5).forge(seen)[0]
        steps = np.full(6, 0.5)
        for start in (0, 3):
            steps[start + np.argmax(np.abs(mu * seen.reference)[start : start + 3])] = 7.0
        np.testing.assert_allclose(forged, mu - steps * sigma)

    def test_is_hard_on_few_and_silent_on_most(self):
        X = np.random.default_rng(0).normal(size=(12, 1000))
        seen = View(own=X[8:], others=X[:8], rng=np.random.default_rng(0))
        away = np.abs(make("hybrid_sparse").forge(seen)[0] - X[:8].mean(axis=0)) / X[:8].std(axis=0)
        assert (away > 3.0).sum() == 10
        assert np.median(away) < 1.0

    def test_harms_a_mean(self, honest):
        attacked = [round["accuracy"] for round in numbers("hybrid_sparse")]
        assert np.mean(attacked) < np.mean(honest) - 0.05


class TestSensitivityCurve:
    @pytest.mark.parametrize("rule", [Median(), GeometricMedian()], ids=repr)
    def test_no_other_distance_moves_the_rule_further(self, rule):
        from honestly.aggregate import aggregate

        rng = np.random.default_rng(2)
        X = rng.normal(0.5, 1.0, (12, 30))
        honest, mu = X[:8], X[:8].mean(axis=0)
        seen = View(own=X[8:], others=honest, pipeline=Pipeline.of(rule), rng=rng)
        forged = make("sensitivity_curve").forge(seen)[0]

        def moved(x):
            value = aggregate(np.vstack([honest, np.tile(x, (4, 1))]), rule, reference=np.zeros(30)).value
            return np.linalg.norm(value - mu)

        spread = np.sqrt(((honest - mu) ** 2).sum(axis=1).mean())
        others = [moved(mu - t * spread * mu / np.linalg.norm(mu)) for t in np.geomspace(0.05, 30.0, 60)]
        assert moved(forged) >= 0.98 * max(others)

    def test_defeats_the_median(self):
        assert numbers("sensitivity_curve", "median", rounds=4)[-1]["accuracy"] < 0.3
        assert numbers("none", "median")[-1]["accuracy"] > 0.6


FEW = {"malicious": 2, "rounds": 6, "seed": 3}


class TestLearntTriggers:
    @pytest.mark.parametrize("name", ["a3fl", "iba"])
    def test_what_is_learnt_makes_the_backdoor(self, name):
        """Two of ten clients and six rounds: the trigger that is not learnt plants nothing yet."""
        learnt = numbers(name, **FEW)
        plain = numbers({"name": name, "steps": 0}, **FEW)
        assert learnt[-1]["asr"] > 0.5
        assert plain[-1]["asr"] < 0.2
        assert learnt[-1]["accuracy"] > 0.6

    @pytest.mark.parametrize("name", ["a3fl", "iba"])
    def test_resumes_with_the_same_bits(self, name, tmp_path):
        few = {**FEW, "rounds": 4, "stop": 3}
        straight = numbers(name, **few)
        record = next(r for r in federation(name, **few).rounds() if r.state.round == 2)
        (tmp_path / "state-2.bin").write_bytes(pack_state(record.state))
        again = federation(name, **few)
        state = read_state(tmp_path / "state-2.bin", again.start())
        assert [r.numbers for r in again.rounds(state)] == straight[2:]

    @pytest.mark.parametrize("name", ["a3fl", "iba"])
    def test_only_images_of_the_attackers_and_of_the_test_are_painted(self, name):
        run = federation({"name": name, "epsilon": 0.1} if name == "iba" else name, **FEW)
        before = run.clients.pixels.images.clone()
        record = next(iter(run.rounds()))
        after, clean = run.clients.pixels.images, len(DIGITS.images)
        assert torch.equal(before[:clean], after[:clean])
        assert not torch.equal(before[clean:], after[clean:])
        painted, test = run.clients.triggered.images, run.painter.test * 255
        apart = (painted.float() - test).abs()
        if name == "iba":
            assert 20 < float(apart.max()) <= 0.1 * 255 + 0.51
        else:
            corner = torch.zeros(8, 8, dtype=torch.bool)
            corner[1:4, 1:4] = True
            assert float(apart[:, :, ~corner].max()) < 0.5
            assert float(apart[:, :, corner].max()) > 50
        again = run.attack.paint(run.painter.test, record.state.attack)
        assert float((again * 255 - painted.float()).abs().max()) < 0.51

    def test_the_adapted_model_has_unlearned_the_trigger(self):
        from torch.nn.functional import cross_entropy

        run = federation("a3fl", **FEW)
        record = list(run.rounds())[-1]
        task = run.painter._task(record.state, run.painter.test)
        painted = run.attack.paint(task.images, record.state.attack)
        losses = [
            float(cross_entropy(task.logits(theta, painted), task.labels))
            for theta in (task.theta, run.attack._forgetful(task, record.state.attack))
        ]
        assert losses[1] < losses[0]

    def test_the_differentiable_model_is_the_trainers(self):
        run = federation("a3fl", **FEW)
        state = run.start()
        task = run.painter._task(state, run.painter.test)
        run.painter._put(run.clients.triggered.images, run.clients.triggered.rows, run.painter.test, {}, 0)
        shown = run.trainer.logits(state.model, run.clients.triggered)
        painted = (run.attack.paint(run.painter.test, {}) * 255).round() / 255
        torch.testing.assert_close(task.logits(state.model.theta, painted), shown, rtol=1e-4, atol=1e-4)


def test_success_and_clean_training_are_what_they_say():
    """The models that the attackers are given: an attack that sends its clean update trains as if it were honest."""
    run = federation("critical_layers", rounds=1, malicious=4)
    state, plan = run.start(), run._plan(1)
    clean = clean_models(run, state, plan)
    honest = federation("none", rounds=1)
    trained = honest.trainer.train(state.model, honest._plan(1).schedules)
    torch.testing.assert_close(clean, trained.theta[-4:])
    rates = success(run, state, plan, torch.stack([state.model.theta, state.model.theta]))
    assert rates.shape == (2,)
    assert float(rates[0]) == float(rates[1])
