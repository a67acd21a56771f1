from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from honestly.sim.adversary import Adversary
from honestly.sim.experiment import Experiment, ExperimentError
from honestly.sim.settings import doubts, experiment, override, presets, read


def test_the_same_settings_have_the_same_id_however_they_are_written() -> None:
    a = experiment(["attack=sign_flip", "malicious=0.4", "seed=3"])
    b = Experiment.of({"seed": 3, "malicious": 0.4, "attack": {"name": "sign_flip", "gamma": 4}, "clients": 20})
    assert a.id == b.id
    assert a.id != experiment(["attack=sign_flip", "malicious=0.4", "seed=4"]).id
    assert Experiment.of(json.loads(a.canonical)).id == a.id


def test_rule_and_settings_together_in_any_order() -> None:
    e = experiment(["rule.f=4", "attack.gamma=2", "rule=multi_krum", "attack=sign_flip"])
    assert e.make_rule().f == 4  # type: ignore[attr-defined]
    assert e.make_attack().gamma == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["nan", "inf"])
def test_attacks_whose_names_look_like_numbers(name: str) -> None:
    assert experiment([f"attack={name}", "malicious=0.4"]).make_attack().name == name
    assert experiment([f"attack.name={name}"]).make_attack().name == name
    with pytest.raises(ExperimentError, match=r"lr = (nan|inf): .*finite"):
        experiment([f"lr={name}"])


def test_a_new_rule_forgets_the_settings_of_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('clients = 12\n[rule]\nname = "krum"\nf = 3\n')
    assert experiment([str(file)]).make_rule().f == 3  # type: ignore[attr-defined]
    assert experiment([str(file), "rule=mean"]).rule.name == "mean"
    assert experiment([str(file), "rule.f=2"]).make_rule().f == 2  # type: ignore[attr-defined]


def test_mixers_before_the_rule() -> None:
    e = experiment(["pre=nnm", "pre.f=3", "rule=median"])
    assert [m.name for m in e.make_pipeline().mixers] == ["nnm"]
    assert Experiment.of({"pre": [{"name": "nnm", "f": 3}], "rule": "median"}).id == e.id


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["clints=3"], r"clints = 3: unknown key, did you mean clients\?"),
        (["clients=0"], r"clients = 0: must be at least 1"),
        (["clients=ten"], r"clients = 'ten': give a whole number"),
        ([f"batch={10**20}"], r"batch = 100000000000000000000: must be at most 1000000"),
        ([f"epochs={10**20}"], r"epochs = 100000000000000000000: must be at most 1000000"),
        (["partition=ballanced"], r"partition = 'ballanced': did you mean balanced\? Allowed: balanced, dirichlet"),
        (["dataset=imagenet"], r"dataset = 'imagenet': Allowed: digits, mnist, fmnist, cifar10"),
        (["rule=multi_krm"], r"multi_krm.*multi_krum"),
        (["rule=multi_krum", "rule.g=2"], r"multi_krum.*g"),
        (["rule=multi_krum", "rule.f=9", "clients=10"], r"needs at least .* 10"),
        (["attack=sign_flp"], r"unknown attack 'sign_flp': did you mean sign_flip"),
        (["attack=sign_flip", "attack.gamma=-1"], r"gamma must be a number > 0, got -1"),
        (["attack=sign_flip", "attack.gama=1"], r"gama.*gamma"),
        (["attack=sign_flip", "attack.gamma=much"], r"gamma.*much"),
        (["malicious=1.5"], r"malicious = 1.5: give a fraction below 1 or a whole number"),
        (["malicious=30"], r"malicious = 30: there are only 20 clients"),
        (["alpha=-1"], r"alpha = -1: must be greater than 0$"),
        (["lr=0"], r"lr = 0: must be greater than 0"),
        (["alpha=nan"], r"alpha"),
        (["seed=-1"], r"seed = -1"),
        (["dynamic=perhaps"], r"dynamic = 'perhaps'"),
        (["epochs.x=1"], r"epochs.x = 1: only rule, attack and pre"),
        (["=3"], r"'=3' is not of the form key=value"),
        (["rule=b\udcff.py:Rule"], r"'rule=b.*' is not UTF-8"),
        (["rule=[1]"], r"rule = \[1\]: write a name with its settings, such as krum:f=2"),
        (["pre=[1]"], r"pre = \[1\]: write a name with its settings"),
        (["pre={f=1}"], r"pre.0.name: missing"),
        (["paper/fmnist-config9.toml"], r"no such file or preset.*did you mean paper/fmnist-config"),
        (["a.toml", "b.toml"], r"more than one file"),
    ],
)
def test_mistakes_are_named_with_what_is_allowed(words: list[str], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        experiment(words)


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("clients = \n")
    with pytest.raises(ExperimentError, match=r"a.toml is not a valid TOML file: .*line 1"):
        read(str(file))


def test_every_preset_is_valid_and_matches_the_paper() -> None:
    assert len(presets()) == 10
    for name in presets():
        e = experiment([name, "rule=mean"])
        if "config" in name:
            assert (e.clients, e.epochs, e.batch, e.lr, e.momentum, e.weight_decay) == (20, 10, 128, 0.01, 0.9, 1e-4)
            assert e.rounds == (200 if e.dataset == "cifar10" else 100)
            assert e.adversary.malicious == {"1": 4, "2": 8, "3": 9}[name[-6]]
            assert e.dynamic == ("config3" in name)


def test_presets_work_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    e = experiment(["paper/fmnist-config2.toml", "rule=mean", "attack=backdoor", "alpha=1.0"])
    assert (e.dataset, e.attack.name, e.alpha, e.malicious_clients) == ("fmnist", "backdoor", 1.0, 8)


def test_defaults_follow_the_data_set() -> None:
    assert experiment(["dataset=cifar10"]).model == "resnet18"
    assert experiment(["dataset=cifar10"]).flip
    assert experiment(["dataset=fmnist"]).batch == 128
    assert experiment(["dataset=digits", "batch=7"]).batch == 7


def test_override_leaves_its_input_alone() -> None:
    values = {"rule": {"name": "krum", "f": 1}}
    override(values, ["rule.f=2"])
    assert values == {"rule": {"name": "krum", "f": 1}}


def test_dynamic_attackers_are_drawn_from_the_malicious_clients_each_round() -> None:
    adversary = Adversary(clients=20, malicious=9, dynamic=True, seed=1)
    masks = [adversary.active(round=r) for r in range(1, 401)]
    counts = [int(m.sum()) for m in masks]
    assert set(counts) == set(range(10))
    assert abs(sum(counts) / 400 - 4.5) < 0.5
    assert not any(m[:11].any() for m in masks)
    assert all((m == adversary.active(round=r)).all() for r, m in enumerate(masks, 1))


def test_random_attackers_are_drawn_once() -> None:
    adversary = Adversary(clients=20, malicious=5, chosen="random", seed=1)
    assert len(adversary.attackers) == 5
    assert adversary.attackers != tuple(range(15, 20))
    assert adversary.active(round=1).nonzero()[0].tolist() == list(adversary.attackers)
    assert Adversary(clients=20, malicious=5, chosen="random", seed=2).attackers != adversary.attackers


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (["rule=krum:f=2"], ["rule=krum", "rule.f=2"]),
        (["rule=nnm:f=2+multi_krum:f=2,keep=3"], ["pre=nnm", "pre.f=2", "rule=multi_krum", "rule.f=2", "rule.keep=3"]),
        (["attack=sign_flip:gamma=2", "malicious=4"], ["attack=sign_flip", "attack.gamma=2", "malicious=4"]),
        (["attack=sign_flip:gamma=3", "attack.gamma=2"], ["attack=sign_flip", "attack.gamma=2"]),
        (["rule=nnm:f=2+krum:f=1", "rule.f=2"], ["pre=nnm:f=2", "rule=krum:f=2"]),
        (["pre=nnm:f=2", "rule=arc:f=1+mean"], ["pre=nnm:f=2+arc:f=1", "rule=mean"]),
        (["rule=bayesian:memory=0.9"], ["rule.memory=0.9"]),
    ],
)
def test_the_grammar_and_the_older_spelling_are_the_same_experiment(new: list[str], old: list[str]) -> None:
    assert experiment(new).id == experiment(old).id


def test_files_hold_the_grammar(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text('rule = "nnm:f=2+krum:f=2"\nattack = "rop:z=1,angle=45"\nmalicious = 4\n')
    e = experiment([str(file)])
    assert e.id == experiment(["pre=nnm:f=2", "rule=krum:f=2", "attack=rop:z=1:angle=45", "malicious=4"]).id
    assert experiment([str(file), "rule=mean"]).pre == ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["attack=sign_flip"], "attack=sign_flip, but nobody attacks (malicious=0): add malicious=0.4"),
        (["attack=sign_flip", "malicious=0.01"], "nobody attacks (malicious=0.01 of 20 clients)"),
        (
            ["malicious=4"],
            "malicious=4, but attack=none, so these clients behave like the others: add attack=sign_flip",
        ),
        (["malicious=4", "attack=sign_flip"], None),
        ([], None),
    ],
)
def test_attacks_without_attackers_and_idle_attackers_warn(words: list[str], message: str | None) -> None:
    found = doubts(experiment(words))
    assert (message is None) == (found == [])
    assert message is None or message in found[0]


def test_the_table_of_data_sets_and_models_is_the_description() -> None:
    from honestly.sim.data import DATASETS
    from honestly.sim.models import MODELS

    for key, names in (("dataset", DATASETS), ("model", MODELS)):
        described = Experiment.model_fields[key].description or ""
        assert all(f"`{name}`" in described for name in names), key
    assert all(source.model in MODELS for source in DATASETS.values())


def test_a_bug_in_a_check_is_not_reported_as_the_users_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """pydantic would make a mistake of every ValueError, also of NumPy's and Python's own."""
    space: dict[str, Any] = {"__name__": "honestly.sim.experiment"}
    exec("def broken(self):\n    return int('three')", space)
    monkeypatch.setattr(Experiment, "make_attack", space["broken"])
    with pytest.raises(ValueError, match="invalid literal") as caught:
        Experiment.of({})
    assert not isinstance(caught.value, ExperimentError)


def test_later_settings_do_not_change_ids() -> None:
    plain = Experiment.of({"attack": "sign_flip", "malicious": 0.4, "seed": 3})
    assert plain.id == "e8ebec6ebf3bdcb897f09a3174d1edd2c31a931047c05b9e084e02983c877bde"
    written_out = {"stop": 0, "burst": 1, "turns": 1, "warm_up": 0}
    assert Experiment.of({"attack": "sign_flip", "malicious": 0.4, "seed": 3, **written_out}).id == plain.id
    assert Experiment.of({"attack": "sign_flip", "malicious": 0.4, "seed": 3, "turns": 2}).id != plain.id


def test_attackers_start_stop_and_sleep() -> None:
    adversary = Adversary(clients=6, malicious=2, start=3, stop=9, period=4, burst=2)
    assert [r for r in range(1, 15) if adversary.active(round=r).any()] == [3, 4, 7, 8]


@pytest.mark.parametrize(("turns", "burst"), [(1, 1), (2, 1), (3, 2), (9, 3)])
def test_attackers_take_turns(turns: int, burst: int) -> None:
    adversary = Adversary(clients=9, malicious=5, turns=turns, period=3, burst=burst)
    masks = [adversary.active(round=r) for r in range(1, 1 + 3 * turns * burst)]
    times = sum(m.astype(int) for m in masks)
    assert times[:4].tolist() == [0] * 4
    assert len(set(times[4:].tolist())) == 1
    assert times[4] >= 1
    assert max(int(m.sum()) for m in masks) == -(-5 // turns)


@pytest.mark.parametrize(
    ("words", "message"),
    [(["start=5", "stop=4"], "stop = 4: attacks begin in round start = 5"), (["burst=2"], "burst = 2: must be")],
)
def test_times_of_attack_that_never_come_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        experiment(words)
