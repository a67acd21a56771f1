"""The documentation of the rules says what the code does."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from honestly.rules import MIXERS, RULES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("entry", [*RULES, *MIXERS], ids=lambda entry: entry.name)
def test_every_rule_has_a_row_with_what_it_needs(entry):
    text = (ROOT / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
    rows = re.findall(rf"^\| `{entry.name}` \|.*$", text, re.M)
    assert len(rows) == 1
    for need in entry.needs:
        assert need in rows[0], f"the row of {entry.name} does not say that it needs {need}"


def test_the_skeleton_of_a_new_rule_runs_and_passes_the_common_tests(tmp_path):
    """The page's file, test and line, copied as a newcomer would: tests of the copy pass."""
    page = (ROOT / "docs" / "how-to" / "own-rule.md").read_text(encoding="utf-8")
    rule, test, line = re.findall(r"```python title=\"(?:src|tests)/[^\n]*\n(.*?)```", page, re.S)
    package = tmp_path / "newcomer"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / "medoid_mean.py").write_text(rule, encoding="utf-8")
    (package / "clients.py").write_text((ROOT / "tests/rules/clients.py").read_text(encoding="utf-8"), encoding="utf-8")
    imported = "from medoid_mean import MedoidMean\n"
    (package / "test_medoid_mean.py").write_text(imported + test, encoding="utf-8")
    common = (ROOT / "tests/rules/test_common.py").read_text(encoding="utf-8")
    common = re.sub(r"^CASES = \(\n.*?^\)\n", f"{imported}CASES = ({line.strip()},)\n", common, flags=re.M | re.S)
    common = re.sub(r"^MIXER_CASES = \(\n.*?^\)\n", "MIXER_CASES = ()\n", common, flags=re.M | re.S)
    (package / "test_common.py").write_text(common, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--doctest-modules", str(tmp_path)]
    chosen = [
        "-k",
        "not every_rule_and_mixer_is_here",
        "--rootdir",
        str(tmp_path),
        "-o",
        "markers=slow",
        "-o",
        "filterwarnings=error",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    run = subprocess.run(
        [*command, *chosen], capture_output=True, text=True, cwd=tmp_path, env=environment, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) > 20
