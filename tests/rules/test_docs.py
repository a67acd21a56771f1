"""The documentation of the rules agrees with the code."""

import re
import runpy
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


def test_names_and_rows_follow_the_tables(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["exports.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "docs" / "exports.py"), run_name="__main__")
    assert ended.value.code == 0, "run `make tables`"
