"""The tables of README and docs agree with the code and the measurements. (tests/docs runs the code blocks.)"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

import honestly as hn

ROOT = Path(__file__).parent.parent


def test_tables_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["tables.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "docs" / "tables.py"), run_name="__main__")
    assert ended.value.code == 0, "run `python docs/tables.py`"


def test_it_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("verdict", hn.Verdict)
def test_the_glossary_explains_every_verdict(verdict: hn.Verdict) -> None:
    text = (ROOT / "docs" / "explanation" / "glossary.md").read_text(encoding="utf-8")
    assert f"**{verdict}**" in text or f"*{verdict}*" in text


def test_public_names() -> None:
    """What users import; a name that disappears is a breaking change."""
    promised = {"Aggregate", "AggregationError", "Bayesian", "Bucketing", "GeometricMedian", "Krum", "Mean", "Median"}
    promised |= {"MultiKrum", "NNM", "Status", "TrimmedMean", "aggregate", "rules", "make", "make_mixer", "__version__"}
    assert promised <= set(hn.__all__)
    assert all(hasattr(hn, name) for name in hn.__all__)
