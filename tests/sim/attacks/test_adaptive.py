"""The adaptive attacker: its small matrices agree with the real updates, and no fixed attack beats it."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest

import honestly as hn
from honestly.engine import Pipeline
from honestly.rules import BatchNormGuard, DeepSight
from honestly.rules.rule import ColumnRule, GramGeometry, Mix, Mixer, Rule
from honestly.sim.attacks import View, make
from honestly.sim.attacks.adaptive import JITTERS
from honestly.sim.attacks.game import Game
from honestly.sim.experiment import Experiment
from honestly.sim.rounds import Federation


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trim(ColumnRule):
    """Trimmed mean, independent of the one in the package."""

    name = "trim"
    summary = ""
    f: int = 3

    def reduce(self, ranked, xp):
        return ranked[self.f : len(ranked) - self.f].mean(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weiszfeld(Rule):
    """Geometric median."""

    name = "weiszfeld"
    summary = ""

    def mix(self, geometry):
        a = np.full(geometry.K, 1 / geometry.K)
        for _ in range(100):
            w = 1 / np.sqrt(np.maximum(geometry.residuals(a), 1e-12))
            a = w / w.sum()
        return Mix.of_weights(a)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clip(Rule):
    """Clips towards the reference: weights that do not sum to 1."""

    name = "clip"
    summary = ""

    def mix(self, geometry):
        norms = np.sqrt(np.diagonal(geometry.gram_about_reference))
        weights = np.minimum(1, np.median(norms) / norms) / geometry.K
        return Mix.of_weights(weights)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs(Mixer):
    """Means of neighbours by index."""

    name = "pairs"
    summary = ""

    def mix(self, geometry):
        return np.repeat(np.eye(geometry.K // 2), 2, axis=1) / 2


def view(rule, M=4, honest=8, d=300, pre=(), seed=0):
    X = np.random.default_rng(seed).normal(0.3, 1.0, (honest + M, d))
    return View(own=X[honest:], others=X[:honest], rng=np.random.default_rng(5), pipeline=Pipeline.of(rule, pre))


def directly(rule, X, honest, pre=()):
    """kappa from the updates themselves; the reference is 0."""
    for mixer in pre:
        X = mixer.mix(GramGeometry(X @ X.T)) @ X
    matrix = rule.mix(GramGeometry(X @ X.T)).matrix
    value = rule.reduce(np.sort(matrix @ X, axis=0), np) if isinstance(rule, ColumnRule) else (matrix @ X)[0]
    mu = honest.mean(0)
    return ((value - mu) ** 2).sum() / ((honest - mu) ** 2).sum(1).mean()


@pytest.mark.parametrize("rule", [Weiszfeld(), Clip(), Trim()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("pre", [(), (Pairs(),)], ids=["alone", "mixed"])
def test_the_game_agrees_with_the_updates(rule, pre):
    if pre and isinstance(rule, Trim):
        rule = Trim(f=1)
    seen = view(rule, pre=pre)
    game = Game.of(seen, seen.pipeline, columns=10**6)
    for name, u in game.directions().items():
        for block, j in JITTERS:
            rows = 1.3 * u + j * game.each(block)
            X = np.concatenate([seen.others, game.vectors(rows)])
            assert game.displacement(rows) == pytest.approx(directly(rule, X, seen.others, pre), rel=1e-6), name


@pytest.mark.parametrize("rule", [Weiszfeld(), Trim()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("M", [1, 3])
def test_moves_a_rule_further_than_every_fixed_attack(rule, M):
    seen = view(rule, M=M, honest=9)

    def kappa(name, **settings):
        forged = make(name, **settings).forge(dataclasses.replace(seen, rng=np.random.default_rng(1)))
        return directly(rule, np.concatenate([seen.others, forged]), seen.others)

    worst = kappa("adaptive")
    for name in ("sign_flip", "alie", "ipm", "min_max", "min_sum", "mimic", "rop", "gaussian", "near_duplicates"):
        assert worst >= 0.98 * kappa(name), name


def test_finds_that_the_mean_has_no_bound():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Average(Rule):
        name = "average"
        summary = ""

        def mix(self, geometry):
            return Mix.of_weights(np.full(geometry.K, 1 / geometry.K))

    seen = view(Average())
    forged = make("adaptive").forge(seen)
    assert directly(Average(), np.concatenate([seen.others, forged]), seen.others) > 1e4


def test_hides_where_copies_would_be_found():
    """A rule that ignores exact copies is answered with jitter."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class NoCopies(Rule):
        name = "no_copies"
        summary = ""

        def mix(self, geometry):
            D = np.diagonal(geometry.gram)[:, None] - 2 * geometry.gram + np.diagonal(geometry.gram)
            copied = (D + np.diag(np.full(geometry.K, np.inf)) < 1e-6 * D.max()).any(axis=1)
            return Mix.of_weights(~copied / (~copied).sum())

    forged = make("adaptive").forge(view(NoCopies()))
    assert (forged[0] != forged[1]).any()


def test_sends_a_decoy_against_a_rule_that_looks_in_one_direction():
    """Drop who stretches the main direction (DnC): one far attacker hides all others."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class OneDirection(Rule):
        name = "one_direction"
        summary = ""

        def mix(self, geometry):
            C = np.eye(geometry.K) - 1 / geometry.K
            v = np.linalg.eigh(C @ geometry.gram @ C)[1][:, -1]
            kept = np.argsort(np.abs(v))[: geometry.K - 4]
            return Mix.of_weights(np.isin(np.arange(geometry.K), kept) / len(kept))

    seen = view(OneDirection(), M=4, honest=12)
    forged = make("adaptive").forge(seen)
    assert directly(OneDirection(), np.concatenate([seen.others, forged]), seen.others) > 10


def test_identical_honest_clients_and_no_direction_at_all():
    zeros = np.zeros((5, 7))
    seen = View(own=zeros[:2], others=zeros, rng=np.random.default_rng(0), pipeline=Pipeline.of(Weiszfeld()))
    assert np.isfinite(make("adaptive").forge(seen)).all()


def test_a_sample_of_columns_stands_for_all_of_them():
    seen = view(Trim(f=4), d=20_000)
    all_columns = Game.of(seen, seen.pipeline, columns=10**6)
    sampled = Game.of(dataclasses.replace(seen, rng=np.random.default_rng(5)), seen.pipeline, columns=2000)
    rows = np.tile(2.0 * sampled.at("std"), (4, 1))
    assert sampled.displacement(rows) == pytest.approx(all_columns.displacement(rows), rel=0.1)


@pytest.mark.parametrize("name", ["adaptive", "sensitivity_curve"])
def test_rules_that_look_at_layers_and_buffers(name):
    """Where the layers are known the rule is asked by layer; a rule that cannot be asked is attacked without asking."""
    X = np.random.default_rng(0).normal(0.5, 1.0, (12, 30))
    pipeline = Pipeline.of(DeepSight())
    seen = View(own=X[8:], others=X[:8], rng=np.random.default_rng(1), pipeline=pipeline, layers=(15, 12, 3))
    plain = {"adaptive": "min_max", "sensitivity_curve": "alie"}[name]
    fallback = make(plain).forge(seen)
    assert not np.allclose(make(name).forge(seen), fallback)
    for blind in (replace(seen, layers=()), replace(seen, pipeline=Pipeline.of(BatchNormGuard()))):
        np.testing.assert_array_equal(make(name).forge(replace(blind, rng=np.random.default_rng(1))), fallback)


@pytest.mark.parametrize("name", ["adaptive", "sensitivity_curve"])
def test_a_rule_with_too_few_clients_is_attacked_without_asking(name):
    """After drop-outs a rule may need more clients than take part: the server refuses such a round."""
    seen = view(hn.Krum(f=3), M=2, honest=3)
    plain = {"adaptive": "min_max", "sensitivity_curve": "alie"}[name]
    np.testing.assert_array_equal(make(name).forge(seen), make(plain).forge(seen))


@pytest.mark.parametrize("name", ["adaptive", "sensitivity_curve"])
def test_in_the_simulator_it_knows_the_root_update(name):
    settings = {"clients": 8, "malicious": 3, "rounds": 1, "epochs": 1, "model": "mlp", "rule": "fltrust"}
    federation = Federation(Experiment.of({**settings, "attack": name}))
    start, plan = federation.start(), federation._plan(1)
    trained = federation.trainer.train(start.model, [*plan.schedules, plan.root]).theta
    sent, _ = federation.forge(start, plan, trained[:-1], trained[-1])
    blind, _ = federation.forge(start, plan, trained[:-1])
    assert not (sent[5:] == blind[5:]).all()

    def harm(models):
        rule = hn.FLTrust(root=trained[-1])
        value = hn.aggregate(models, rule, reference=start.model.theta).value
        return float((value - models[:5].mean(0)).norm())

    assert harm(sent) > harm(blind)
    assert next(federation.rounds(start)).numbers["status"] == "computed in closed form"
