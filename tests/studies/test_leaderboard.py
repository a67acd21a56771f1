"""benchmarks/leaderboard.py continues where it stopped, and knows which code made a line."""

import json
import sys
from pathlib import Path

import pytest

from honestly.show.tables import Table

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # the script sets them for its process; here they end with the test


def test_code_hash_ignores_comments_docstrings_and_imports(tmp_path, monkeypatch):
    import code_version

    monkeypatch.setattr(code_version, "SOURCE", tmp_path)
    file = tmp_path / "rule.py"
    file.write_text('"""A rule."""\ndef f(x):\n    """Add one."""\n    return x + 1\n')
    before = code_version.code_hash("rule.py")
    file.write_text('"""Another text."""\nfrom math import pi\ndef f(x):\n    return (x + 1)  # more\n')
    assert code_version.code_hash("rule.py") == before
    file.write_text("def f(x):\n    return x + 2\n")
    assert code_version.code_hash("rule.py") != before


def test_every_row_of_the_page_names_its_commit_and_the_text_its_cost():
    import leaderboard

    lines = [{"rule": "mean", "commit": "1a", "cost": 60.0}, {"rule": "krum", "commit": "2b", "cost": 60.0}]
    table = Table("t", "Standings", "", ("rule", "ms"), [["krum", 1.0], ["mean", 2.0], ["que", 3.0]])
    page = leaderboard.with_commits(table, [*lines, {"rule": "que"}]).markdown()
    assert [row.split(" | ")[-1] for row in page.splitlines()[-3:]] == ["2b |", "1a |", "unknown |"]
    assert leaderboard.costs([*lines, {"rule": "que"}]) == "2 minutes of processor time for 2 of 3 rows."


def test_lines_of_the_same_code_are_not_made_again(tmp_path, monkeypatch):
    import leaderboard

    calls = []

    def evaluate(suite, facts, rule, args, bars):
        calls.append(rule)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return {**facts, "rule": rule, "cost": 1.0}

    monkeypatch.setattr(leaderboard, "evaluate", evaluate)
    monkeypatch.setattr(leaderboard, "write_page", lambda lines: None)
    monkeypatch.setattr(leaderboard, "commit", lambda: "1a")
    words = ["leaderboard.py", "--out", str(tmp_path), "--suites", "small-1", "--rules", "mean", "krum"]
    monkeypatch.setattr(sys, "argv", words)
    assert leaderboard.main() == 130
    assert leaderboard.main() == 0
    assert calls == ["mean", "krum", "krum"]
    monkeypatch.setattr(leaderboard, "code_hash", lambda *places: "other code")
    assert leaderboard.main() == 0
    assert calls[3:] == ["mean", "krum"]
    lines = [json.loads(line) for line in (tmp_path / "standings.jsonl").read_text().splitlines()]
    assert [(line["rule"], line["code"]) for line in lines] == [("mean", "other code"), ("krum", "other code")]


def test_pages_name_the_commits_of_their_runs():
    from code_version import commits

    runs = [{"rule": "mean"}, {"rule": "krum"}, {"rule": "que", "commit": "1a"}, {"rule": "que", "commit": "1a"}]
    assert commits([*runs, {"rule": "krum"}]) == "Runs: 3 at earlier commits, 2 at commit 1a."
