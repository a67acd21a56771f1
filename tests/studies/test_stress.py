"""The instrument measures what it says: the Gram path agrees with `hn.aggregate` and with plain formulas."""

import dataclasses

import numpy as np
import pytest

from honestly.aggregate import aggregate
from honestly.rules import RULE_CATALOG
from honestly.show.stress_cases import fixed_attacks
from honestly.show.stress_tables import tables
from honestly.sim.attacks import ATTACKS, KNOWS, DataAttack, View, make
from honestly.sim.attacks.span import Span
from honestly.studies.attacked import AttackedRound
from honestly.studies.layers.forge import LAYERED
from honestly.studies.populations import synthetic
from honestly.studies.specs import Contestant
from honestly.studies.stress import ADAPTIVE, CORE, SUITE, StressStudy, StressTask, run

TENSORS = {"deep_sight", "batch_norm_guard"}  # they look at single tensors, which these populations do not have
MIXED = ["nnm+median", "nnm+geometric_median", "bucketing+trimmed_mean"]


def attacked(name="alie", M=4, K=20, kind="low_rank", d=500):
    population = synthetic(kind, clients=K, seed=1, dimension=d)
    X = population.honest
    view = View(own=X[K - M :], others=X[: K - M], rng=np.random.default_rng(0), clients=K)
    return AttackedRound(X[: K - M], make(name).forge(view), population.root)


@pytest.mark.parametrize("spec", [*(name for name in RULE_CATALOG if name not in TENSORS), *MIXED])
@pytest.mark.parametrize("attack", ["sign_flip", "alie", "near_duplicates", "nan"])
def test_the_gram_path_agrees_with_aggregate(spec, attack):
    """Every rule of the package, on the small matrices and through the public function."""
    f = 2 if attack == "nan" else 4  # after two clients are excluded, every rule must still accept the rest
    found = attacked(attack, M=f)
    contestant = Contestant(spec)
    score = found.score(contestant, f)
    pipeline, _ = contestant.build(K=20, f=f, root=found.root)
    X = np.concatenate([found.honest, found.forged])
    out = aggregate(X, pipeline, reference=np.zeros(X.shape[1]))
    kappa = np.square(out.value - found.mean).sum() / found.variance
    assert score["kappa"] == pytest.approx(kappa, rel=1e-5, abs=1e-9)
    if score["honesty"] is not None:
        np.testing.assert_allclose(score["honesty"], out.honesty, atol=1e-5)
        assert score["estimated"] == pytest.approx(out.malicious, abs=1e-3)


def test_kappa_of_the_mean_is_the_formula():
    found = attacked("sign_flip", M=4)
    gap = np.concatenate([found.honest, found.forged]).mean(0) - found.honest.mean(0)
    variance = np.mean([np.sum((h - found.honest.mean(0)) ** 2) for h in found.honest])
    assert found.score(Contestant("mean"), 0)["kappa"] == pytest.approx(gap @ gap / variance)


def test_excluded_clients_have_no_honesty_and_no_weight():
    score = attacked("nan", M=3).score(Contestant("bayesian"), 0)
    assert score["honesty"][-3:] == [0, 0, 0]
    assert score["auc"] == 1.0
    assert score["missed"] == 0.0


def test_any_number_of_jobs_gives_the_same_cases():
    study = StressStudy(
        rules=["median", "multi_krum"],
        attacks=["random", ADAPTIVE],
        populations=["isotropic"],
        clients=[10],
        malicious=[0, 2, 0.4],
    )

    def without_time(cases):
        return [dataclasses.replace(case, seconds=0.0) for case in cases]

    seen = []
    alone = run(study, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert without_time(alone) == without_time(run(study, jobs=2))
    assert {(case.malicious, case.attack) for case in alone} == {
        (0, "none"),
        *((M, attack) for M in (2, 4) for attack in ("random", ADAPTIVE)),
    }


@pytest.mark.parametrize("K", [5, 200])
def test_few_and_many_clients(K):
    study = StressStudy(
        rules=["bayesian", "geometric_median", "median", "multi_krum", "krum"],
        attacks=["alie", "sign_flip"],
        populations=["isotropic"],
        clients=[K],
        malicious=[0, 0.4],
    )
    cases = run(study)
    assert {case.rule for case in cases} >= {"bayesian", "geometric_median", "median"}
    assert all(np.isfinite(case.kappa) for case in cases)


def test_no_rule_is_moved_further_by_a_fixed_attack_than_by_the_adaptive_one():
    """Not exactly (its search is finite), but it must be the measure of the worst case."""
    study = StressStudy(
        rules=["geometric_median", "nnm+median"], populations=["isotropic"], clients=[10], malicious=[4]
    )
    cases = run(study)
    for rule in study.rules:
        searched = max(c.kappa for c in cases if c.rule == rule and c.attack == ADAPTIVE)
        others = max(c.kappa for c in cases if c.rule == rule and c.attack != ADAPTIVE)
        assert searched > 0.9 * others, rule


def test_the_number_of_tries_is_stated_where_worst_cases_are(monkeypatch):
    asked = []
    answer = Span.answer
    monkeypatch.setattr(Span, "answer", lambda self, *given: asked.append(1) or answer(self, *given))
    study = StressStudy(rules=["median"], attacks=["ipm", ADAPTIVE], populations=["isotropic"], malicious=[4])
    cases = run(study)
    tries = {case.attack: case.tries for case in cases}
    assert tries["ipm"] is None
    beside = len(cases) + 1  # each case asks once more, to be scored, and the attacker whether the rule answers
    assert tries[ADAPTIVE] == len(asked) - beside
    notes = {table.name: table.note for table in tables(cases, study.attacks)}
    for name in ("worst", "population_4"):
        assert f"with {tries[ADAPTIVE]} tries per round" in notes[name]
    quiet = run(dataclasses.replace(study, attacks=["ipm"]))
    assert "no attacker searched" in {table.name: table.note for table in tables(quiet, ["ipm"])}["worst"]


def test_believed_f_may_differ_from_the_true_number():
    study = StressStudy(
        rules=["multi_krum", "geometric_median"],
        attacks=["sign_flip"],
        populations=["isotropic"],
        malicious=[4],
        believed=[None, 0, 8],
    )
    cases = run(study)
    told = [(c.rule, c.believed, c.guessed) for c in cases]
    assert told == [
        ("multi_krum", 4, False),
        ("multi_krum", 0, True),
        ("multi_krum", 8, True),
        ("geometric_median", None, False),
    ]
    kappa = {c.believed: c.kappa for c in cases}
    assert kappa[0] > 1 > kappa[4], "four attackers are let in if none is expected"
    assert kappa[8] > kappa[4], "honest clients are thrown away if too many are expected"


def test_recorded_data_attacks_take_part(tmp_path):
    rng = np.random.default_rng(0)
    honest = rng.normal(size=(10, 50))
    np.savez(tmp_path / "r.npz", honest=honest, label_flip=honest[7:] + 100.0)
    study = StressStudy(
        rules=["mean"],
        attacks=["label_flip", "backdoor"],
        populations=[str(tmp_path)],
        clients=[10],
        malicious=[2, 4],
    )
    cases = run(study)
    # three poisoned updates were recorded, so four attackers cannot be formed; no backdoor was recorded at all
    assert [(c.attack, c.malicious) for c in cases] == [("label_flip", 2)]
    expected = np.square(0.2 * (honest[8:] + 100.0).mean(0) - 0.2 * honest[:8].mean(0)).sum()
    variance = np.square(honest[:8] - honest[:8].mean(0)).sum(1).mean()
    assert cases[0].kappa == pytest.approx(expected / variance)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rules": ["nothing"]}, "unknown rule"),
        ({"attacks": ["nothing"]}, "unknown attack"),
        ({"populations": ["nothing"]}, "unknown population"),
        ({"clients": [2]}, "clients = 2"),
        ({"malicious": [-1]}, "malicious = -1"),
        ({"malicious": [1.5]}, "malicious = 1.5"),
        ({"malicious": [float("nan")]}, "malicious = nan"),
        ({"malicious": [float("inf")]}, "malicious = inf"),
        ({"malicious": [10]}, "none is a minority"),
        ({"believed": [-1]}, "believed f = -1"),
        ({"seeds": []}, "seeds"),
        ({"seeds": [0, -1]}, "seeds = -1: must be at least 0"),
    ],
)
def test_a_study_that_cannot_run_says_so_at_once(settings, message):
    with pytest.raises(ValueError, match=message):
        StressStudy(**settings)


def test_the_suite_holds_every_fixed_attack_on_updates():
    named = {spec.split(":")[0] for spec in SUITE if spec not in LAYERED}
    expected = {name for name, kind in ATTACKS.items() if name != "none" and kind.knows != "rule"}
    assert named == expected
    assert all(issubclass(ATTACKS[n], DataAttack) or n in named for n in expected)
    assert "bayesian" in CORE


SPY = """
from dataclasses import dataclass
from honestly.sim.attacks import UpdateAttack

@dataclass(frozen=True, kw_only=True)
class Spy(UpdateAttack):
    name = "spy"
    summary = "looks around"
    knows = "{knows}"

    def craft(self, view):
        assert (view.others is not None, view.rule is not None) == {seen}
        return view.own
"""


@pytest.mark.parametrize("knows", KNOWS)
def test_attackers_see_what_they_declare_to_know(tmp_path, knows):
    path = tmp_path / f"spy_{knows}.py"
    path.write_text(SPY.format(knows=knows, seen=(knows in ("all", "rule"), knows == "rule")))
    settings = {"rules": ["mean"], "populations": ["isotropic"], "clients": [4], "malicious": [1]}
    assert len(run(StressStudy(attacks=[f"{path}:Spy"], **settings))) == 1


def test_an_attack_that_knows_the_rule_answers_each_rule():
    """It saw no rule, and was another attack under its own name."""
    rules = ["median", "geometric_median", "mean"]
    attacks = ["sensitivity_curve", "alie"]
    cases = run(StressStudy(rules=rules, attacks=attacks, populations=["isotropic"], clients=[10], malicious=[3]))
    kappa = {(case.rule, case.attack): case.kappa for case in cases}
    for rule in rules:
        assert kappa[rule, "sensitivity_curve"] > 1.1 * kappa[rule, "alie"]
    assert not any(case.attack == "sensitivity_curve" for case in fixed_attacks(cases))


def test_tables_are_about_the_right_cases():
    study = StressStudy(
        rules=["bayesian", "mean", "multi_krum"],
        attacks=["sign_flip", "alie", f"{ADAPTIVE}:lines=0"],
        populations=["isotropic", "clustered"],
        clients=[9],
        malicious=[0, 4],
        believed=[None, 2],
    )
    cases = run(study)
    found = {table.name: table for table in tables(cases)}
    assert set(found) == {"aim", "worst", "mean", "population_4", "attack_4", "truth", "wrong_f"}
    worst = {row[0]: row[2] for row in found["worst"].rows}
    for rule in study.rules:
        true = [c.kappa for c in cases if c.rule == rule and c.malicious == 4 and not c.guessed]
        assert worst[rule] == max(true)
    plain = [c.kappa for c in cases if c.rule == "mean" and c.malicious == 4 and ADAPTIVE not in c.attack]
    assert {row[0]: row[3] for row in found["mean"].rows}["mean"] == pytest.approx(np.mean(plain))
    believed = {(row[0], row[1]) for row in found["wrong_f"].rows}
    assert ("multi_krum", "2") in believed
    assert ("multi_krum", "the truth") in believed
    assert ("bayesian", "needs none") in believed
    assert [row[0] for row in found["attack_4"].rows] == ["sign_flip", "alie", f"{ADAPTIVE}:lines=0"]
    aim = {row[0]: row for row in found["aim"].rows}
    assert aim["M = 4, all"][3] == "mean"  # the only other rule that is not told f
    assert aim["M = 4, all"][4] == pytest.approx(worst["bayesian"] / worst["mean"])


def test_a_task_is_reproducible_by_itself():
    study = StressStudy(rules=["mean"], attacks=["random"], populations=["isotropic"], malicious=[4])
    task = study.tasks()[0]
    assert isinstance(task, StressTask)
    assert task.run()[0].kappa == task.run()[0].kappa
