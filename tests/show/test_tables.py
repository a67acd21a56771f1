"""Pages are filled from measurements, and a page that asks for something else is refused."""

import io
import re
from pathlib import Path

import pytest

from honestly.show.stress_tables import tables
from honestly.show.tables import Table, fill
from honestly.show.tables import text as shown
from honestly.studies.stress import StressStudy, run

PAGE = Path(__file__).parents[2] / "docs" / "results" / "which-rule.md"


def test_fill_replaces_every_marked_part_and_nothing_else():
    page = "a\n<!-- x -->\nold\n<!-- end x -->\nb\n<!-- y --><!-- end y -->\nc"
    filled = fill(page, {"x": "new | \\1", "y": "other", "unused": ""})
    assert filled == "a\n<!-- x -->\nnew | \\1\n<!-- end x -->\nb\n<!-- y -->\nother\n<!-- end y -->\nc"
    assert fill(filled, {"x": "new | \\1", "y": "other"}) == filled


def test_fill_refuses_marks_that_it_cannot_fill():
    with pytest.raises(ValueError, match=r"asks for 'z'.*it has x"):
        fill("<!-- z --><!-- end z -->", {"x": ""})
    with pytest.raises(ValueError, match="without '<!-- end x -->'"):
        fill("<!-- x -->", {"x": ""})


def test_the_page_on_rules_has_only_marks_that_close():
    page = PAGE.read_text(encoding="utf-8")
    marks = re.findall(r"<!-- (?!end )([\w-]+) -->", page)
    assert len(marks) > 8
    assert fill(page, dict.fromkeys(marks, "")).count("<!-- end ") == len(marks)


def test_several_numbers_of_clients_are_compared():
    study = StressStudy(
        rules=["mean", "median"],
        attacks=["sign_flip", "alie"],
        populations=["isotropic"],
        clients=[5, 10],
        malicious=[0.2, 0.4],
    )
    cases = run(study)
    table = next(table for table in tables(cases) if table.name == "clients")
    assert list(table.columns) == ["rule", "told", "2 of 5", "4 of 10"]
    expected = max(case.kappa for case in cases if (case.rule, case.clients, case.malicious) == ("median", 10, 4))
    assert {row[0]: row[3] for row in table.rows}["median"] == expected


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_stress_study_fits_the_terminal_and_says_which_attackers_were_run(width):
    from rich.console import Console

    rules = ["mean", "bayesian", "geometric_median", "nnm+trimmed_mean"]
    attacks = ["sign_flip", "sign_flip:gamma=2", "alie", "label_flip", "adaptive"]
    study = StressStudy(rules=rules, attacks=attacks, populations=["isotropic"], clients=[10], malicious=[0, 2, 4])
    console = Console(width=width, record=True, file=io.StringIO())
    found = tables(run(study), attacks)
    for table in found:
        console.print(table.rich(width))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    plain = " ".join(text.replace("\n", " ").split())
    assert "On updates: sign_flip in 2 ways, alie, adaptive." in plain
    assert "were not recorded): label_flip." in plain
    assert "--record OUT.npz attack=NAME" in plain
    for table in found:
        for cell in (cell for row in table.rows for cell in row):
            assert shown(cell)[: width // 2 - 4] in text  # nothing is cut off


def test_a_row_of_latex_may_begin_with_a_bracket_or_a_star():
    """After a line break LaTeX takes a bracket for a length, even on the next line, and a star for a part of it."""
    rows = [["[K] ours", 0.5], ["*best*", 0.25], ["mean", 0.125]]
    lines = Table("t", "Title", "", ["rule", "kappa"], rows, frozenset({(2, 1)})).latex().splitlines()
    body = lines[lines.index(r"    \midrule") + 1 : lines.index(r"    \bottomrule")]
    assert body == [r"    {}[K] ours & 0.500 \\", r"    {}*best* & 0.250 \\", r"    mean & \textbf{0.125} \\"]
