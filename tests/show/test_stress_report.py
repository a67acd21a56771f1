"""Written results can be read again, and the page needs no other files."""

import csv
import json
import re

import pytest

from honestly.show.stress_page import read, write
from honestly.show.tables import Table, lowest, text
from honestly.studies.stress import StressStudy, run


@pytest.fixture(scope="module")
def study():
    return StressStudy(
        rules=["bayesian", "geometric_median"],
        attacks=["sign_flip", "alie"],
        populations=["isotropic"],
        clients=[10],
        malicious=[0, 2, 4],
    )


@pytest.fixture(scope="module")
def cases(study):
    return run(study)


def test_everything_is_written_and_the_cases_come_back(study, cases, tmp_path):
    files = {file.name: file for file in write(study, cases, tmp_path / "new" / "folder", seconds=1.0)}
    assert set(files) == {
        "cases.jsonl", "cases.csv", "summary.json", "summary.md", "index.html", "heatmap.png", "reliability.png",
    }  # fmt: skip
    assert read(files["cases.jsonl"]) == cases
    with files["cases.csv"].open() as file:
        assert [float(row["kappa"]) for row in csv.DictReader(file)] == [case.kappa for case in cases]
    summary = json.loads(files["summary.json"].read_text())
    assert summary["study"]["rules"] == ["bayesian", "geometric_median"]
    assert {"worst", "mean", "truth"} <= set(summary["tables"])
    assert files["heatmap.png"].read_bytes().startswith(b"\x89PNG")


def test_the_page_is_self_contained(study, cases, tmp_path):
    write(study, cases, tmp_path, seconds=1.0)
    page = (tmp_path / "index.html").read_text()
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert sources
    assert all(source.startswith("data:") for source in sources)
    assert "<script" not in page


def test_a_rule_without_any_bound_is_written_as_valid_json(study, cases, tmp_path):
    import dataclasses

    broken = [dataclasses.replace(case, kappa=float("inf")) for case in cases]
    write(study, broken, tmp_path, seconds=1.0)
    json.loads((tmp_path / "summary.json").read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert read(tmp_path / "cases.jsonl")[0].kappa == float("inf")


def test_tables_mark_the_lowest_of_those_that_count():
    rows = [["a", 0.1, 2.0], ["b", 0.3, 1.0], ["c", 0.05, None]]
    assert lowest(rows, [1, 2], [True, True, False]) == {(0, 1), (1, 2)}
    table = Table("t", "Title", "Note.", ["rule", "x", "y"], rows, lowest(rows, [1, 2]))
    assert table.markdown().splitlines()[2:] == [
        "| rule | x | y |", "| --- | ---: | ---: |", "| a | 0.100 | 2.000 |", "| b | 0.300 | **1.000** |",
        "| c | **0.050** | - |",
    ]  # fmt: skip
    assert re.search(r'<td class="best">1.000</td>', table.html())
    assert table.records()[2] == {"rule": "c", "x": 0.05, "y": None}


def test_names_cannot_break_out_of_the_page():
    table = Table("t", "<b>", "&", ["<i>"], [["<script>"]])
    assert "<script>" not in table.html()
    assert "<i>" not in table.html()


def test_numbers_as_people_read_them():
    assert [text(x) for x in (0.0, 9.9994, 123.4, 1e12, float("inf"), float("nan"), None, 3, "x")] == [
        "0.000", "9.999", "123", "> 10000", "> 10000", "nan", "-", "3", "x",
    ]  # fmt: skip
