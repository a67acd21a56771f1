"""A study's file says what is run; every mistake in it is named."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from honestly.sim.experiment import Experiment
from honestly.studies.study import Study, StudyError, only, select, shard, shipped_studies, text_of

MINE = """
name = "mine"
[base]
clients = 10
[axes]
attack = ["sign_flip", "backdoor"]
config = [{ label = 1, malicious = 2 }, { label = 2, malicious = 4, dynamic = true }]
rule = [
    { label = "Ours", rule = "bayesian" },
    { label = "Krum", rule = { name = "multi_krum", f = 2 } },
    { label = "Krum, memory of 8, 9", rule = "krum", "rule.f" = 1 },
]
"attack.gamma" = [2, 4.0]
seed = [0, 1]
[[overrides]]
where = { config = 2, rule = "Krum" }
set = { "rule.f" = 4, rounds = 7 }
[[exclude]]
attack = "backdoor"
"attack.gamma" = [2, 4.0]
[[exclude]]
rule = ["Ours", "Krum"]
seed = 1
"""


def test_the_expansion_is_the_product_less_the_exclusions() -> None:
    entries = Study.parse(MINE).entries()
    expected = [
        {"attack": attack, "config": config, "rule": rule, "attack.gamma": gamma, "seed": seed}
        for attack, config, rule, gamma, seed in itertools.product(
            ["sign_flip", "backdoor"], [1, 2], ["Ours", "Krum", "Krum, memory of 8, 9"], [2, 4.0], [0, 1]
        )
        if attack == "sign_flip" and not (rule in ("Ours", "Krum") and seed == 1)
    ]
    assert [e.cell for e in entries] == expected
    for e in entries:
        made = Experiment.of(json.loads(e.experiment))
        assert (made.id, made.canonical, made.rounds) == (e.id, e.experiment, e.of)
        assert (made.clients, made.seed, made.attack.settings) == (
            10,
            e.cell["seed"],
            {"gamma": e.cell["attack.gamma"]},
        )
        assert (made.malicious_clients, made.dynamic) == ((2, False) if e.cell["config"] == 1 else (4, True))
        if e.cell["rule"] == "Krum":
            assert (made.rule.name, made.rule.settings["f"]) == ("multi_krum", 2 * e.cell["config"])
            assert made.rounds == (7 if e.cell["config"] == 2 else 20)


def test_shards_are_disjoint_and_make_up_the_whole() -> None:
    entries = Study.parse(MINE).entries()
    parts = [select(entries, {}, shard(f"{i}/3")) for i in (1, 2, 3)]
    assert sorted(e.id for part in parts for e in part) == sorted(e.id for e in entries)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_only_chooses_by_label() -> None:
    study = Study.parse(MINE)
    entries = study.entries()

    def cells(*words: str) -> list[dict[str, Any]]:
        return [e.cell for e in select(entries, only(words, study))]

    assert cells() == [e.cell for e in entries]
    assert {c["rule"] for c in cells("rule=Krum, memory of 8, 9")} == {"Krum, memory of 8, 9"}
    assert {c["rule"] for c in cells("rule=Ours,Krum", "seed=0")} == {"Ours", "Krum"}
    assert {c["attack.gamma"] for c in cells("attack.gamma=4")} == {4.0}
    assert {c["config"] for c in cells("config=1", "config=2")} == {1, 2}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rules=Ours"], r"rules = .* no such axis, did you mean rule\?"),
        (["rule=Oars"], "no such value, did you mean Ours.*Values: Ours, Krum"),
        (["rule"], "write axis=value"),
        (["rule="], "write axis=value"),
    ],
)
def test_a_wrong_choice_is_named(words: list[str], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        only(words, Study.parse(MINE))


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "-1/2", "1/2/3", "1/0"])
def test_a_wrong_shard_is_named(text: str) -> None:
    with pytest.raises(StudyError, match=r"--shard .*1 <= i <= n"):
        shard(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = ", "not a valid TOML file"),
        ("[axes]\nseed = [0]", "name: missing"),
        ('name = "x"', "axes: missing"),
        ('name = "x"\nrepeat = 3\n[axes]\nseed = [0]', "repeat = 3: unknown key, Allowed keys: name, about, base"),
        ('name = "x"\n[axes]\nseed = 3', "axes.seed = 3: give a list"),
        ('name = "x"\n[axes]\nseed = []', r"axes.seed = \[\]: give at least one value"),
        ('name = "x"\n[axes]\nseed = [0, 0]', "axes.seed: 0 appears twice"),
        ('name = "x"\n[axes]\nsead = [0]', "axes.sead: not a setting of an experiment, did you mean seed?"),
        ('name = "x"\n[axes]\nrule = [{ f = 3 }]', "needs a label"),
        ('name = "x"\n[axes]\nseed = [-1]', r"the cell seed=-1 cannot be run: seed = -1: must be at least 0"),
        ('name = "x"\n[axes]\nrule = ["krumm"]', "the cell rule=krumm cannot be run: .*krum"),
        ('name = "x"\n[base]\nclints = 3\n[axes]\nseed = [0]', "clints = 3: unknown key, did you mean clients?"),
        ('name = "x"\n[axes]\nseed = [0]\n[[exclude]]\nsed = 0', "exclude: sed = 0: no such axis, did you mean seed?"),
        ('name = "x"\n[axes]\nseed = [0]\n[[exclude]]\nseed = 7', "exclude: seed = 7: no such value, Values: 0"),
        ('name = "x"\n[axes]\nseed = [0]\n[[exclude]]\nseed = 0', "no cells are left"),
        ('name = "x"\n[axes]\nseed = [0]\n[[exclude]]', r"exclude = \{\}: name at least one axis"),
        ('name = "x"\n[axes]\nseed = [0]\n[[overrides]]\nwhere = {}\nset = {}', "overrides.where = {}"),
        ('name = "x"\n[axes]\nseed = [0]\n[[overrides]]\nset = {}', "overrides.0.where: missing"),
        ('name = "x"\n[axes]\nmodel = ["cnn", ""]', "are the same experiment: exclude one"),
        (f'name = "x"\n[axes]\nseed = {list(range(400))}\nrounds = {list(range(1, 400))}', "159,600 cells"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(text: str, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        Study.parse(text).entries()


def test_runs_with_a_warm_up_share_it_and_come_after_it() -> None:
    text = """
name = "warm"
[axes]
alpha = [0.5, 1.0]
attack = ["sign_flip", "backdoor"]
malicious = [2, 4]
[[overrides]]
where = { attack = "backdoor" }
set = { warm_up = 5 }
"""
    study = Study.parse(text)
    entries = study.entries()
    ids = [e.id for e in entries]
    starts = [e for e in entries if "warm_up" in e.cell]
    assert [e.cell for e in starts] == [{"alpha": 0.5, "warm_up": 5}, {"alpha": 1.0, "warm_up": 5}]
    warm = [e for e in entries if e.cell.get("attack") == "backdoor"]
    assert len(warm) == 4
    for e in warm:
        assert e.needs is not None
        assert ids.index(e.needs) < ids.index(e.id)
        assert entries[ids.index(e.needs)].cell["alpha"] == e.cell["alpha"]
    chosen = select(entries, only(["attack=backdoor", "alpha=1.0", "malicious=2"], study))
    assert [e.cell for e in chosen] == [starts[1].cell, {"alpha": 1.0, "attack": "backdoor", "malicious": 2}]


@pytest.mark.parametrize("name", shipped_studies())
def test_the_shipped_studies_can_be_run(name: str) -> None:
    study = Study.parse(text_of(name))
    assert study.name == name
    assert len(study.entries()) > 2
    assert text_of(f"{name}.toml") == text_of(name)


def test_the_paper_tables_have_every_published_cell_and_tell_rules_what_the_paper_tells_them() -> None:
    entries = [e for e in Study.parse(text_of("paper-tables")).entries() if "warm_up" not in e.cell]
    rules = ["FedAvg", "Median", "TrimAvg", "GeoMed", "Krum", "Ours"]
    published = set(itertools.product(
        ["mnist", "fmnist", "cifar10"], [1, 2, 3], ["sign_flip", "label_flip", "random", "backdoor"], [0.5, 1.0], rules,
    ))  # fmt: skip
    axes = ("dataset", "config", "attack", "alpha", "rule")
    seeds: dict[tuple[Any, ...], list[int]] = {}
    for e in entries:
        seeds.setdefault(tuple(e.cell[axis] for axis in axes), []).append(e.cell["seed"])
    assert {cell for cell in seeds if cell[4] in rules} == published
    # a backdoor cell gives two numbers
    assert sum(2 if cell[2] == "backdoor" else 1 for cell in published) == 540
    for cell, found in seeds.items():
        assert found == ([0, 1, 2] if cell[4] in ("Krum", "Ours") else [0])
    for e in entries:
        made = Experiment.of(json.loads(e.experiment))
        M = {1: 4, 2: 8, 3: 9}[e.cell["config"]]
        assert (made.clients, made.malicious_clients, made.dynamic) == (20, M, e.cell["config"] == 3)
        assert (made.dataset, made.attack.name, made.alpha) == (e.cell["dataset"], e.cell["attack"], e.cell["alpha"])
        assert made.rounds == (200 if made.dataset == "cifar10" else 100)
        assert made.warm_up == (200 if (made.dataset, made.attack.name) == ("cifar10", "backdoor") else 0)
        assert (made.epochs, made.batch, made.lr, made.momentum, made.weight_decay) == (10, 128, 0.01, 0.9, 1e-4)
        if e.cell["rule"] == "Krum":
            assert (made.rule.name, made.rule.settings) == ("multi_krum", {"f": M, "keep": 20 - M})
        if e.cell["rule"] == "TrimAvg":
            assert made.rule.settings["trim"] == M / 20
        assert (made.rule.settings.get("variant") == "paper") == (e.cell["rule"] == "Ours (paper)")


def test_an_unknown_study_is_named() -> None:
    with pytest.raises(StudyError, match=r"no such file or study: quik; did you mean quick\?.*paper-ablation"):
        text_of("quik")


@pytest.mark.parametrize("name", ["tables", "ablation", "figure1"])
def test_the_two_readings_of_the_paper_differ_only_in_images_and_weights(name: str) -> None:
    code, text = (Study.parse(text_of(f"paper-{kind}{name}")).entries() for kind in ("", "text-"))
    assert [entry.cell for entry in code] == [entry.cell for entry in text]
    for one, other in zip(code, text, strict=True):
        a, b = json.loads(one.experiment), json.loads(other.experiment)
        if one.cell.get("attack") == "backdoor" and one.cell["rule"] in ("FedAvg", "GeoMed"):
            assert (a.pop("sizes"), a["rule"].pop("sizes")) == ("images", "trusted")
            b["rule"].pop("sizes", None)
        differing = {key: (a[key], b[key]) for key in a.keys() | b.keys() if a[key] != b[key]}
        assert differing == ({"crop": (4, 0)} if a["dataset"] == "cifar10" else {"fit": ("resize", "pad")})
