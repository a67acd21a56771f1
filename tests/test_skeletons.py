"""A newcomer's rule and attack: one file, one line in the table, one line in the common test, in a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for folder in ("src", "tests/rules", "tests/sim/attacks", "docs/skeletons", "docs/reference"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignore)
    for file in ("pyproject.toml", "docs/exports.py", "tests/conftest.py", "tests/without.py"):
        shutil.copy(ROOT / file, tmp_path / file)
    return tmp_path


def add_line(file: Path, after: str, line: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(after) == 1, after
    file.write_text(text.replace(after, f"{after}{line}\n"), encoding="utf-8")


def run(tree: Path, *words: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    done = subprocess.run(
        [sys.executable, *words], cwd=tree, env=environment, capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def count_passed(tree: Path, *words: str) -> int:
    told = run(tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words)
    found = re.search(r"(\d+) passed", told)
    assert found, told
    return int(found[1])


def test_a_rule(tree: Path) -> None:
    shutil.copy(tree / "docs/skeletons/rule.py", tree / "src/honestly/rules/medoid_mean.py")
    add_line(tree / "src/honestly/rules/__init__.py", "RULES: tuple[type[Rule], ...] = (\n", "    MedoidMean,")
    add_line(tree / "tests/rules/test_common.py", "\nCASES = (\n", "    Case(MedoidMean(f=3), alone=False, bad=BAD_F),")
    assert "src/honestly/__init__.py" in run(tree, "docs/exports.py")
    run(tree, "docs/exports.py", "--check")
    new = "MedoidMean or medoid_mean or every_rule_and_mixer_is_here or everything_listed"
    tests = ("test_common.py", "test_table.py", "test_docs.py")
    assert count_passed(tree, *(f"tests/rules/{test}" for test in tests), "-k", new) > 20
    assert count_passed(tree, "src/honestly/rules/medoid_mean.py") == 1
    assert "MedoidMean(f=2)" in run(tree, "-c", "import honestly as hn; print(hn.MedoidMean(f=2))")
    assert "medoid_mean" in run(tree, "-m", "honestly", "rules")
    offered = run(tree, "-m", "honestly", "completion", "--words", ".aggregate", ".--rule", ".nnm:f=1+medoid_mean:")
    assert offered == "nnm:f=1+medoid_mean:f=\n"
    message = (
        "needs f, the number of attackers to withstand (Python: hn.MedoidMean(f=2); command line: medoid_mean:f=2)"
    )
    script = "import honestly as hn\ntry:\n    hn.make('medoid_mean')\nexcept ValueError as error:\n    print(error)"
    assert message in run(tree, "-c", script)


def test_an_attack(tree: Path) -> None:
    import torch  # noqa: F401 (the simulator needs it)

    shutil.copy(tree / "docs/skeletons/attack.py", tree / "src/honestly/sim/attacks/stubborn.py")
    add_line(tree / "src/honestly/sim/attacks/__init__.py", '    "attack",\n    Attack,\n    (\n', "        Stubborn,")
    run(tree, "docs/exports.py")
    run(tree, "docs/exports.py", "--check")
    assert count_passed(tree, "tests/sim/attacks/test_common.py", "-k", "stubborn or Stubborn") > 5
    assert count_passed(tree, "src/honestly/sim/attacks/stubborn.py") == 1
    assert "stubborn" in run(tree, "-m", "honestly", "attacks")
    suite = run(tree, "-c", "from honestly.studies.stress import SUITE; print(SUITE)")
    assert "'stubborn'" in suite


def test_entries_that_cannot_be_listed_are_reported(tree: Path) -> None:
    add_line(tree / "src/honestly/rules/__init__.py", "RULES: tuple[type[Rule], ...] = (\n", "    Nowhere,")
    done = subprocess.run(
        [sys.executable, "docs/exports.py"], cwd=tree, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert "Nowhere: defined in 0 files of src/honestly/rules, expected one" in done.stderr
