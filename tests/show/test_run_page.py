"""The page of runs: numbers where there are enough rounds, one row for a client, names that stay text."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from typing import Any

import numpy as np
import pytest
from made_studies import record as plain

from honestly.runs.reader import read_record
from honestly.runs.record import RoundRecord
from honestly.show.downloads import as_csv, inside
from honestly.show.html import render
from honestly.show.run import RunView
from honestly.show.run_page import accusations, numbers, page

HOSTILE = "</title><script>alert(1)</script>\x1b[2J\u202e" + "y" * 100_000


def record(round: int, changes: dict[str, Any] | None = None, **settings: Any) -> RoundRecord:
    return read_record(plain(round, **settings) | (changes or {}))[0]


def run(T: int, **settings: Any) -> RunView:
    K = settings.get("K", 20)
    return RunView("r", [record(t, **settings) for t in range(1, T + 1)], [str(k) for k in range(K)])


@pytest.mark.parametrize(("T", "there"), [(19, False), (20, True)])
def test_a_mean_of_the_last_20_rounds_needs_20(T: int, there: bool) -> None:
    found = numbers([run(T)])
    assert found is not None
    assert any("mean of the last 20" in column for column in found.columns) == there


def test_beside_a_long_run_a_short_one_has_a_dash() -> None:
    found = numbers([run(25), run(3)])
    assert found is not None
    where = found.columns.index("accuracy, mean of the last 20")
    assert [row[where] for row in found.rows] == ["0.900", "–"]


def test_accusations_are_counted_client_by_client() -> None:
    rounds = [record(t, {"accused": [3, 0] if t == 1 else [3], "excluded": [1]}, K=4, M=1) for t in (1, 2, 3)]
    found = accusations(RunView("r", rounds, ["a", "b", "c", "d"]))
    assert found is not None
    assert found.columns == ["client", "attacked", "accused", "wrongly", "excluded"]
    assert found.rows == [["b", 0, 0, 0, 3], ["d", 3, 3, 0, 0], ["a", 0, 1, 1, 0]]
    federation = accusations(RunView("r", rounds, ["a", "b", "c", "d"], known=False))
    assert federation is not None
    assert federation.columns == ["client", "accused", "excluded"]  # nobody knows who attacked


def test_maps_beside_each_other_have_the_same_rows() -> None:
    many = run(2, K=150, M=40)
    truth, belief = many.maps()
    assert truth.drawn_rows() == belief.drawn_rows()
    assert set(range(110, 150)) <= set(truth.drawn_rows())


def test_no_map_of_liars_is_drawn_if_nobody_lies() -> None:
    assert [m.title for m in run(3, M=0).maps()] == ["Probability of being honest"]
    assert run(3, M=0, rule="mean").maps() == []  # equal weights say nothing


def test_repeated_messages_are_folded_into_one() -> None:
    bad = range(12, 20)
    refused = {"excluded": list(bad), "reasons": {str(k): f"square overflows at {k}" for k in bad}}
    rounds = [record(t, refused, M=8) for t in range(1, 16)]
    text = page("x", [RunView("r", rounds, [str(k) for k in range(20)])])
    assert "8 clients, 15 rounds: square overflows" in text
    visible = re.sub(r"<details>.*?</details>", "", text, flags=re.S)
    assert "<li>8 clients" not in visible


def test_the_page_says_why_clients_were_accused() -> None:
    why = "its update opposes what the others agree on, most of all in head.weight"
    rounds = [record(t, {"accused": [3], "accusations": {"3": why}}, K=4, M=1) for t in (1, 2)]
    found = RunView("r", rounds, [str(k) for k in range(4)])
    text = page("x", [found])
    assert "Why clients were accused" in text
    assert f"1 client, 2 rounds: {why}" in text
    assert "Why clients were accused" not in page("x", [run(2, K=4, M=1)])


def test_strangers_texts_are_escaped_and_bounded() -> None:
    hostile = {"status": f"refused: {HOSTILE}", "reasons": {HOSTILE: HOSTILE}, "accusations": {HOSTILE: HOSTILE}}
    hostile["accused"] = [0]
    rounds = [record(t, hostile, K=3, M=1) for t in (1, 2)]
    found = RunView(HOSTILE, rounds, [HOSTILE, "b", "c"], details={HOSTILE: HOSTILE})
    text = page(HOSTILE, [found, RunView("other", rounds, ["a", "b", "c"])], lead=HOSTILE)
    assert re.findall(r"<script[^>]*>", text) == ['<script type="module">']  # our own, which draws a PNG file
    assert "\x1b" not in text
    assert "\u202e" not in text
    without_downloads = re.sub(r'href="data:[^"]*"', "", text)
    assert len(without_downloads) < 350_000


def test_downloads_hold_the_rounds() -> None:
    text = page("x", [run(3, K=4, M=1)], picture=b"\x89PNG...")
    found = dict(re.findall(r'href="data:([^;]+);base64,([^"]+)"', text))
    assert set(found) == {"text/csv", "application/json", "image/svg+xml", "image/png"}
    rows = list(csv.DictReader(io.StringIO(base64.b64decode(found["text/csv"]).decode())))
    assert [row["round"] for row in rows] == ["1", "2", "3"]
    assert rows[0]["attacked"] == "3"
    (held,) = json.loads(base64.b64decode(found["application/json"]))
    assert [len(r["honesty"]) for r in held["rounds"]] == [4, 4, 4]


def test_a_page_without_a_png_file_draws_it_and_runs_nothing_else() -> None:
    embedded, drawn = (page("x", [run(3)], picture=picture) for picture in (b"\x89PNG...", b""))
    assert "<script" not in embedded
    (script,) = re.findall(r'<script type="module">(.*?)</script>', drawn, flags=re.S)
    (allowed,) = re.findall(r"script-src &#39;sha256-([^&]+)&#39;", drawn)
    assert allowed == base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def test_spreadsheets_get_no_formulas_and_pages_no_large_files() -> None:
    assert as_csv(["=a"], [["=1+1"], ["-5"], [-5.0], [None]]) == "'=a\n'=1+1\n'-5\n-5.0\n\"\"\n"
    assert inside("a.csv", "x" * 2_000_000) == []


def test_templates_escape_text_and_refuse_missing_values() -> None:
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        render("run.html", heading="x")


def test_the_page_of_a_long_run_stays_small_enough_to_open() -> None:
    """The sizes that the changelog names: 100 clients, 1,000 rounds."""
    rng = np.random.default_rng(0)
    records = [
        RoundRecord(round=t, accuracy=0.5, honesty=rng.uniform(0.9, 1, 100).round(6).tolist(), participants=range(100))
        for t in range(1, 1001)
    ]
    text = page("long", [RunView("x", records, [str(k) for k in range(100)])])
    assert len(text) < 3_000_000
    assert "figure.svg" in text


@pytest.mark.parametrize("rounds", [200, 201])
def test_the_key_names_marks_that_are_drawn(rounds: int) -> None:
    records = [RoundRecord(round=t, honesty=[1.0, 0.0], accused=[1]) for t in range(1, rounds + 1)]
    text = page("x", [RunView("x", records, ["a", "b"])])
    assert ('<circle class="mark" cx="7"' in text) == ('<path class="dot' in text) == (rounds == 200)
