"""The commands as a person calls them."""

import json

import pytest

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


def test_stress_says_at_once_that_it_cannot_write(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert call(*SMALL, "--out", str(tmp_path / "file" / "out")) == 1
    assert "Not a directory" in capsys.readouterr().err
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
