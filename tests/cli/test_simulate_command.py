"""`honestly simulate`, `datasets` and `demo` as a user runs them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from honestly.cli import main
from honestly.sim.data.files import SETS
from honestly.sim.experiment import Experiment

SMALL = ["rounds=2", "clients=6", "epochs=1", "model=mlp", "rule=mean"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HONESTLY_DATA", raising=False)


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_run_leaves_its_records_and_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *SMALL, "attack=sign_flip", "malicious=0.4", "seed=3", "--out", "runs/a"]) == 0
    records = lines(Path("runs/a/rounds.jsonl").read_text())
    assert [r["round"] for r in records] == [1, 2]
    assert all({"round", "accuracy", "asr", "attacked", "honesty", "excluded"} <= set(r) for r in records)
    assert records[0]["attacked"] == [4, 5]
    assert Path("runs/a/figure.png").stat().st_size > 1000
    assert "<svg" in Path("runs/a/report.html").read_text()
    assert "accuracy, last round" in capsys.readouterr().out


def test_json_lines_are_the_records_also_when_the_run_is_finished(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        assert main(["simulate", *SMALL, "--json", "--out", "a"]) == 0
        assert capsys.readouterr().out == Path("a/rounds.jsonl").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", *SMALL],
        ["demo", "--rounds", "1"],
        [
            "stress",
            "--rules",
            "mean",
            "--attacks",
            "none",
            "--populations",
            "isotropic",
            "--malicious",
            "0",
            "--jobs",
            "1",
        ],
    ],
)
def test_a_folders_name_is_text_also_with_brackets(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--out", "a[/b]c[red]"]) == 0
    assert "a[/b]c[red]" in capsys.readouterr().out


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *SMALL, "--quiet", "--seed", "5", "--out", "a"]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(Path("a/experiment.json").read_text())["experiment"]["seed"] == 5


def test_without_out_the_id_names_the_folder() -> None:
    assert main(["simulate", *SMALL, "--quiet"]) == 0
    (folder,) = Path("runs").iterdir()
    assert json.loads((folder / "experiment.json").read_text())["id"].startswith(folder.name)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["clints=3"], "unknown key"),
        (["rule=kurm"], "krum"),
        (["model=lenet"], "did you mean lenet5"),
        (["--device", "tpu"], "expected cpu, cuda"),
        (["missing.toml"], "no such file or preset"),
        (["--out", "taken"], "is a file: choose another folder"),
        (["dataset=mnist", "--data", "nowhere/at/all", "--out", "x"], "could not download dataset 'mnist'"),
        (["clients=3000"], "only 1438 training images"),
    ],
)
def test_mistakes_end_with_a_message_and_no_traceback(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SETS, "mnist", replace(SETS["mnist"], mirrors=("http://127.0.0.1:9/",)))
    monkeypatch.setattr("honestly.sim.data.download.RETRIES", 0)
    Path("taken").write_text("x")
    assert main(["simulate", *words]) != 0
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_the_partition_is_drawn(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "clients=4", "malicious=1", "--show-partition"]) == 0
    out = capsys.readouterr().out
    assert "3 *" in out
    assert "1438" not in out  # nobody has everything
    assert not Path("runs").exists()


def test_a_narrow_terminal_shows_every_number_of_the_partition(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def drawn(columns: int) -> list[list[str]]:
        """The cells of the three clients, in one table or in several below each other."""
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["simulate", "clients=3", "--show-partition"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= columns
        return [
            [c.strip() for line in lines if line.startswith(f"│ {k} ") for c in line.split("│")[2:-1]] for k in range(3)
        ]

    assert drawn(40) == drawn(200)
    assert [len(cells) for cells in drawn(40)] == [1 + 10] * 3, "images and classes"


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["simulate", "--help"])
    named = capsys.readouterr().out.partition("Other keys:")[2].partition("\n\n")[0].split()
    assert {*named, "rule", "pre", "attack"} == set(Experiment.model_fields)


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--presets"]) == 0
    assert "paper/fmnist-config2.toml" in capsys.readouterr().out.split()


def test_updates_are_recorded() -> None:
    assert main(["simulate", *SMALL, "--quiet", "--out", "a", "--record", "updates"]) == 0
    assert sorted(p.name for p in Path("updates").iterdir()) == ["round-0001.npz", "round-0002.npz"]


def test_data_sets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["datasets"]) == 0
    assert "comes with the package" in capsys.readouterr().out
    assert main(["datasets", "--json", "--data", "."]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["name"] for r in rows] == ["digits", "mnist", "fmnist", "cifar10"]
    assert rows[1]["where"] is None


def test_the_demo_shows_who_lied(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--rounds", "2", "--out", "d"]) == 0
    page = Path("d/report.html").read_text()
    assert "8 of 20 clients lied; FedAvg ended at" in page
    assert "nobody lies" in page
    assert page.count("<figcaption>Who really attacked") == 2  # the rule in question and FedAvg, not where nobody lied
    assert Path("d/figure.png").exists()
    assert "8 of 20 clients lied" in capsys.readouterr().out
