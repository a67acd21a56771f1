"""The commands as a user runs them."""

import json

import pytest
from full_disk import full

from honestly.cli import main
from honestly.sim.attacks import ATTACKS


def call(*words):
    return main(words)


SMALL = ("stress", "--rules", "bayesian,median", "--attacks", "sign_flip", "--populations", "isotropic", "--jobs", "1")


def test_stress_prints_tables_and_writes_files(tmp_path, capsys):
    assert call(*SMALL, "--clients", "8", "--malicious", "0,2", "--out", str(tmp_path / "out")) == 0
    out = capsys.readouterr().out
    assert "Worst case, 8 clients" in out
    assert "4 cases in" in out
    assert (tmp_path / "out" / "index.html").is_file()


def test_stress_as_json(capsys):
    assert call(*SMALL, "--clients", "8", "--malicious", "2", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["rule"] for row in found["tables"]["worst"]] == ["bayesian", "median"]
    assert found["study"]["clients"] == [8]


def test_stress_names_rules_without_a_case(capsys):
    words = ("--attacks", "sign_flip", "--populations", "isotropic", "--malicious", "4", "--jobs", "1", "--json")
    assert call("stress", "--rules", "median,deep_sight", *words) == 0
    assert "no case for deep_sight" in capsys.readouterr().err
    assert call("stress", "--rules", "batch_norm_guard", *words) == 1
    output = capsys.readouterr()
    assert "no case for batch_norm_guard" in output.err
    assert output.out == ""


@pytest.mark.parametrize(
    ("attack", "population", "message"),
    [
        ("neurotoxin", "isotropic", "no case under neurotoxin: it needs updates that were trained on poisoned data"),
        ("one_layer", "isotropic", "no case under one_layer: it needs a population by layer"),
        ("poisoned_fl", "digits", "no case under poisoned_fl: it needs whole updates"),
    ],
)
def test_stress_says_what_an_attack_without_a_case_needs(capsys, attack, population, message):
    words = ("stress", "--rules", "mean", "--populations", population, "--clients", "10", "--malicious", "4")
    assert call(*words, "--attacks", attack, "--jobs", "1", "--json") == 1
    output = capsys.readouterr()
    assert message in output.err
    assert "no case for mean" not in output.err, "the rule is not to blame"
    assert call(*words, "--attacks", attack, "sign_flip", "--jobs", "1", "--json") == 0
    output = capsys.readouterr()
    assert message in output.err
    assert "sign_flip" not in output.err


def test_stress_with_a_guess_of_f(capsys):
    words = ("stress", "--rules", "multi_krum", "--attacks", "sign_flip", "--populations", "isotropic", "--jobs", "1")
    assert call(*words, "--malicious", "4", "--believed-f", "true,2", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["tables"]["wrong_f"]
    assert [row["believed f"] for row in rows] == ["the truth", "2"]


def test_stress_all_rules_and_fixed_attacks_are_words(capsys):
    words = ("stress", "--rules", "all", "--attacks", "fixed", "--populations", "isotropic", "--clients", "5")
    assert call(*words, "--malicious", "1", "--jobs", "1", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["tables"]["worst"]) > 5
    assert len(found["study"]["attacks"]) > 30


def test_stress_refuses_a_misspelt_word(capsys):
    assert call("stress", "--rules", "bayesan") == 2
    assert "did you mean bayesian" in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--malicious", "x"), "argument --malicious: 'x': give numbers"),
        (("--clients", "8,y"), "argument --clients: '8,y': give whole numbers"),
        (("--believed-f", "maybe"), "give whole numbers or 'true'"),
    ],
)
def test_stress_names_what_is_no_number(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        call("stress", *words)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


MINE = """
from dataclasses import dataclass
import numpy as np
from honestly.rules.rule import Mix, Rule

@dataclass(frozen=True, kw_only=True)
class Mine(Rule):
    name = "mine"
    summary = "a rule with a mistake"
    bound = "1"

    def mix(self, geometry):
        return {body}
"""


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ("Mix.of_weights(np.ones(3) @ np.ones(4))", 1, "your code failed, mine.py, line 13: ValueError: matmul"),
        ("[][geometry.K]", 1, "your code failed, mine.py, line 13: IndexError"),
        ("Mix.of_weights(np.ones(3) / 3)", 2, "expected a weight for each of the 8 clients"),
    ],
)
def test_a_mistake_in_a_rule_of_ones_own_is_named(tmp_path, capsys, jobs, body, status, message):
    """Also where it is a ValueError, as a rule of the package raises for too few clients, or comes from a process."""
    (tmp_path / "mine.py").write_text(MINE.format(body=body))
    words = ("--attacks", "sign_flip", "--populations", "isotropic", "--clients", "8", "--malicious", "1", "2")
    assert call("stress", "--rules", f"{tmp_path}/mine.py:Mine", "mean", *words, "--jobs", jobs) == status
    assert message in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize("more", [(), ("--suite", "small-1")])
def test_a_seed_below_0_is_refused(more, capsys):
    assert call("stress", "--seeds", "-1", *more) == 2
    assert "-1: must be at least 0" in capsys.readouterr().err


def test_stress_says_at_once_that_it_cannot_write(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert call(*SMALL, "--out", str(tmp_path / "file" / "out")) == 1
    assert f"{tmp_path / 'file'} is a file: choose another folder with --out" in capsys.readouterr().err
    assert call(*SMALL, "--jobs", "0") == 2


def test_attacks_lists_every_name(capsys):
    assert call("attacks", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(ATTACKS)
    assert next(row for row in rows if row["name"] == "sign_flip")["settings"] == {"gamma": 4.0}
    assert call("attacks") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in ATTACKS)


def test_help_of_each(capsys):
    for command in ("stress", "attacks"):
        with pytest.raises(SystemExit) as stop:
            call(command, "--help")
        assert stop.value.code == 0
        assert capsys.readouterr().out


def test_stress_records_layers_and_runs_on_them(tmp_path, capsys):
    file = tmp_path / "new" / "layers.npz"
    words = ("dataset=digits", "model=mlp", "clients=6", "epochs=1", "rounds=1,2", "attack=label_flip", "left_out=0,2")
    assert call("stress", "--record", str(file), *words) == 0
    assert "digits-mlp-a0.5-o2-s0 (4 layers)" in capsys.readouterr().out
    study = ("--rules", "mean,median", "--attacks", "label_flip,one_layer", "--clients", "6", "--malicious", "0,2")
    assert call("stress", "--populations", str(file), *study, "--jobs", "1", "--json") == 0
    found = json.loads(capsys.readouterr().out)["tables"]
    assert [row["rule"] for row in found["layer_worst"]] == ["mean"], "the median needs coordinates"
    assert found["run"][0]["number"] == 4
    assert call("stress", "--populations", str(file), *study, "--jobs", "1", "--out", str(tmp_path / "out")) == 0
    out = capsys.readouterr().out
    assert "Worst case by layer, 6 clients" in out
    assert "What was run" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("dataset=digits",), "'dataset=digits' is a setting of training, which needs --record"),
        (("--record", "layers.txt"), "ends with .npz"),
        (("--record", "layers.npz", "attack=alie"), "unknown data attack 'alie'"),
        (("--record", "layers.npz", "--device", "tpu"), "--device tpu"),
    ],
)
def test_stress_refuses_what_it_cannot_record(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call("stress", *words) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_earlier_recording_as_it_was(tmp_path, capsys, monkeypatch):
    words = ("stress", "--record", str(tmp_path / "layers.npz"), "dataset=digits", "model=mlp", "clients=4", "rounds=1")
    assert call(*words, "epochs=1", "attack=none") == 0
    before = (tmp_path / "layers.npz").read_bytes()

    monkeypatch.setattr("honestly.files.os.fsync", full)
    assert call(*words, "epochs=1", "attack=none", "seed=1") == 1
    assert f"cannot write {tmp_path / 'layers.npz'}: No space left on device. Free" in capsys.readouterr().err
    assert (tmp_path / "layers.npz").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["layers.npz"]
