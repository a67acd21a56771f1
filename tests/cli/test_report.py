"""`honestly report` as a user runs it: on a run, a folder of runs, a history, and on invalid input."""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from full_disk import full
from made_studies import fill

from honestly.cli import main
from honestly.federation.history import History
from honestly.federation.record import Round

SETTINGS = ["dataset=digits", "rounds=3", "clients=6", "epochs=1", "attack=sign_flip", "malicious=2"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch  # noqa: F401  (the simulator needs it: see tests/without.py)

    folder = tmp_path_factory.mktemp("runs")
    for rule in ("bayesian", "mean"):
        assert main(["simulate", *SETTINGS, f"rule={rule}", "--quiet", "--out", str(folder / rule)]) == 0
    return folder


def test_histories_of_one_name_are_different_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder is often called `history`: neither of two federations may take the other's place."""
    monkeypatch.chdir(tmp_path)
    for site, seconds in (("north", 1.0), ("south", 2.0)):
        written = History(f"{site}/history")
        belief = {f"{site}-{k}": 0.05 if k == 2 else 0.97 for k in range(3)}
        written.add(Round(1, tuple(belief), belief, None, {}, False, "converged", False, seconds=seconds))
        written.write()
    shutil.copytree("north/history", "copy/history")
    folders = ["north/history", "south/history", "copy/history"]
    assert main(["report", *folders, "--out", "both", "--no-figures", "--quiet"]) == 0
    text = Path("both/README.md").read_text(encoding="utf-8")
    assert "2 of 2 runs" in text, "a copy of a history is the same run"
    assert ("north-2" in text, "south-2" in text) == (True, True)
    assert "**history (2)**" in text


def history(folder: Path) -> Path:
    written = History(folder)
    for t in (1, 2):
        honesty = {"site-1": 0.98, "site-2": 0.97, "<b>site-3</b>": 0.03}
        written.add(
            Round(t, tuple(honesty), honesty, None, {}, False, "converged", False, evaluation={"accuracy": 0.5})
        )
    written.write()
    return folder


def test_one_run_of_the_simulator(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(runs / "bayesian")]) == 0
    said = capsys.readouterr().out
    out = runs / "bayesian" / "report"
    assert "bayesian: 1 of 1 runs are finished" in said
    assert str(out / "index.html") in said
    page = (out / "index.html").read_text(encoding="utf-8")
    for part in (
        "Test accuracy",
        "Who really attacked",
        "Probability of being honest",
        "Accusations",
        "ROC",
        "Reliability",
    ):
        assert part in page
    assert "2 of 6 clients lied" in page
    assert (out / "figures" / "bayesian-1.png").read_bytes().startswith(b"\x89PNG")
    lines = (runs / "bayesian" / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    times = Counter(k for line in lines for k in json.loads(line)["accused"])
    assert times[5] > 0, "the last client attacked"
    text = (out / "README.md").read_text(encoding="utf-8")
    assert all(f"| {client} | {n} | 0 |" in text for client, n in times.items())


def test_a_folder_of_runs_is_a_study(runs: Path, tmp_path: Path) -> None:
    assert main(["report", str(runs), "--out", str(tmp_path), "--no-figures", "--quiet"]) == 0
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "2 of 2 runs are finished" in text
    assert "| bayesian | " in text
    assert "| mean | " in text
    assert not (tmp_path / "figures").exists()


def test_the_report_says_how_to_make_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "fig 1", "paper-figure1", skip=lambda e: True).close()
    assert main(["report", "fig 1", "--out", str(tmp_path / "results"), "--quiet"]) == 0
    text = (tmp_path / "results" / "README.md").read_text(encoding="utf-8")
    block = "honestly bench paper-figure1 --out 'fig 1'\nhonestly report 'fig 1' --out results\n"
    assert f"```sh\n{block}```" in text
    assert str(tmp_path) not in text


def test_the_authors_own_words_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    fill(tmp_path / "fig", "paper-figure1", skip=lambda e: True).close()
    Path("mine.md").write_text("# My results\n\nRun at home.\n", encoding="utf-8")
    assert main(["report", "fig", "--out", "results", "--preface", "mine.md", "--quiet"]) == 0
    text = Path("results/README.md").read_text(encoding="utf-8")
    assert text.startswith("# My results\n\nRun at home.\n\n")
    assert "honestly report" not in text, "the author says how it was made"
    assert sum(line.startswith("# ") for line in text.splitlines()) == 1
    assert main(["report", "fig", "--out", "results", "--preface", "none.md"]) == 1
    failed = capsys.readouterr().err
    assert "none.md" in failed
    assert "Traceback" not in failed
    Path("old.md").write_bytes("# Größe\n".encode("latin-1"))
    assert main(["report", "fig", "--out", "results", "--preface", "old.md"]) == 2
    assert "--preface old.md: it is not UTF-8 text" in capsys.readouterr().err


def test_a_federations_history_from_its_folder_or_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = history(tmp_path / "mine")
    assert main(["report", str(folder)]) == 0
    assert "mine: 2 rounds" in capsys.readouterr().out
    page = (folder / "report" / "index.html").read_text(encoding="utf-8")
    assert "client &lt;b&gt;site-3&lt;/b&gt;, rounds 1–2: honesty 0.03, accused" in page
    assert "<b>site" not in page
    assert "<h1>Federation mine</h1>" in page
    assert "2 rounds with 3 clients; accused: &lt;b&gt;site-3&lt;/b&gt; in every round" in page
    assert "Who really attacked" not in page  # nobody knows
    assert "ROC" not in page
    assert main(["report", str(folder / "rounds.jsonl"), "--out", str(tmp_path / "x"), "--quiet"]) == 0
    assert (tmp_path / "x" / "index.html").is_file()


def test_a_history_needs_neither_torch_nor_pydantic_nor_matplotlib(tmp_path: Path) -> None:
    folder = history(tmp_path / "mine")
    code = (
        "import sys\n"
        "for name in ('torch', 'pydantic', 'matplotlib', 'rich'): sys.modules[name] = None\n"
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'matplotlib' else find(name, *a)\n"
        "from honestly.cli import main\n"
        f"sys.exit(main(['report', {str(folder)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert "no PNG and SVG files: they need matplotlib" in done.stdout
    assert (folder / "report" / "index.html").is_file()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("gone", None, "does not exist"),
        ("empty", {}, "neither study.sqlite"),
        ("table.csv", "a,b\n", "cannot be reported on"),
        ("broken", {"study.sqlite": "no database"}, "study.sqlite"),
    ],
)
def test_what_cannot_be_reported_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: dict[str, str] | str | None, says: str
) -> None:
    path = tmp_path / name
    if isinstance(content, str):
        path.write_text(content)
    elif content is not None:
        path.mkdir()
        for file, text in content.items():
            (path / file).write_text(text)
    assert main(["report", str(path)]) != 0
    failed = capsys.readouterr().err
    assert says in failed
    assert name in failed
    assert "Traceback" not in failed


def test_a_full_disk_leaves_the_earlier_report_as_it_was(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["report", str(runs), "--out", str(tmp_path), "--no-figures", "--quiet"]) == 0
    before = (tmp_path / "index.html").read_bytes()

    monkeypatch.setattr("honestly.files.os.fsync", full)
    assert main(["report", str(runs), "--out", str(tmp_path), "--no-figures", "--quiet"]) == 1
    told = capsys.readouterr().err
    assert f"cannot write {tmp_path / 'index.html'}: No space left on device. Free some space" in told
    assert (tmp_path / "index.html").read_bytes() == before


def test_a_file_in_the_way_of_the_report_is_named(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("")
    for out in ("taken", "taken/report"):
        assert main(["report", str(runs), "--out", str(tmp_path / out)]) == 1
        assert f"{tmp_path / 'taken'} is a file: choose another folder with --out" in capsys.readouterr().err
