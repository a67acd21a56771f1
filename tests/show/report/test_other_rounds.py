"""Runs named like the paper's cells that are shorter: shown beside the published numbers, never counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_studies import finish, record

from honestly.runs.reader import Rounds, read
from honestly.runs.store import Store
from honestly.show.report.by_round import MOST_CHARTS, by_round, series_of
from honestly.show.report.other_rounds import other_rounds
from honestly.show.report.published import Column, Key, compare, count, published_numbers
from honestly.show.report.results import Result
from honestly.show.report.sources import ReportedRun, load
from honestly.show.report.write import ReportOptions, write
from honestly.studies.study import Study

CIFAR = (Path(__file__).parents[3] / "results" / "cifar.toml").read_text(encoding="utf-8")


def result(rule: str, attack: str, rounds: int, accuracy: float, asr: float | None = None, **more: Any) -> Result:
    cell = {"dataset": "cifar10", "config": 2, "alpha": 0.5, "attack": attack, "rule": rule, "seed": 0}
    settings = {"warm_up": more.pop("warm_up", 0)}
    status = more.pop("status", "done")
    entry = ReportedRun(
        f"{rule}{attack}{more}", cell | more, status, rounds, rounds, read=lambda: Rounds([], [], True),
        details={"experiment": json.dumps(settings)},
    )  # fmt: skip
    numbers = {f"{m}_{s}": v for m, v in (("accuracy", accuracy), ("asr", asr)) for s in ("last", "mean_last_20")}
    return Result(entry, numbers, None)


def test_another_number_of_rounds_is_shown_beside_the_papers_and_not_counted() -> None:
    runs = [
        result("Krum", "sign_flip", 60, 0.7),
        result("Ours", "sign_flip", 60, 0.80),
        result("Ours", "sign_flip", 60, 0.82, seed=1),
        result("Ours", "backdoor", 25, 0.75, 0.01, warm_up=60),
        result("Mine", "sign_flip", 60, 0.5),
        result("Median", "sign_flip", 60, 0.6, status="running"),
        result("GeoMed", "sign_flip", 200, 0.78),
    ]
    found = compare(runs, "last")
    assert count(found) == {"reproduced": 1, "not run": 539}, "the run of 200 rounds alone"
    table = other_rounds(runs)[0]
    assert table.title == "CIFAR-10, configuration 2, 25 or 60 rounds instead of 200, last round"
    assert "others as not run" in table.note
    assert table.columns == [
        "rule", "SignFlip α=0.5 ACC, 60 rounds", "paper, 200",
        "Backdoor α=0.5 ACC, 25 rounds after 60 without attack", "paper, 200",
        "Backdoor α=0.5 ASR, 25 rounds after 60 without attack", "paper, 200",
    ]  # fmt: skip
    assert [row[0] for row in table.rows] == ["Krum", "Ours", "Mine"], "finished runs of another length"
    ours = {
        metric: published_numbers()[Key("cifar10", 2, "Ours", Column("backdoor", 0.5, metric))]
        for metric in ("ACC", "ASR")
    }
    assert table.rows[1] == [
        "Ours", "0.810 ± 0.014", "0.88", "0.750", f"{ours['ACC']:.2f}", "0.010", f"{ours['ASR']:.2f}",
    ]  # fmt: skip
    assert table.rows[2] == ["Mine", "0.500", None, None, None, None, None]


def test_the_mean_of_20_rounds_needs_20_rounds() -> None:
    assert len(other_rounds([result("Ours", "sign_flip", 20, 0.5)])) == 2
    assert len(other_rounds([result("Ours", "sign_flip", 19, 0.5)])) == 1
    assert other_rounds([result("Ours", "sign_flip", 200, 0.5)]) == []
    other = result("Ours", "alie", 60, 0.5)
    assert other_rounds([other]) == [], "the paper has no such attack"


def test_a_report_of_the_short_study_says_so(tmp_path: Path) -> None:
    with Store.open(tmp_path / "cifar") as store:
        every = Study.parse(CIFAR).entries()
        entries = [e for e in every if e.cell.get("alpha") == 0.5 and e.cell.get("config") in (2, None)]
        entries = [e for e in entries if e.cell.get("attack") in ("label_flip", "backdoor", None)]
        store.add(entries)
        store.set_meta(name="cifar-short", study=CIFAR)
        for entry in entries:
            if entry.cell.get("rule") != "GeoMed":
                finish(store, entry, 4, level=True)
    write([load(tmp_path / "cifar")], tmp_path / "out", ReportOptions(pages=False))
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "### Not the paper's number of rounds" in text
    assert "rounds instead of 200, last round" in text
    # six rules and "Ours (paper)" but GeoMed; label flip gives one number, the backdoor two
    assert "0 reproduced (within 0.02), 0 better, 0 worse, 15 run for half of the rounds, 525 not run" in text
    table = (tmp_path / "out" / "cells.csv").read_text(encoding="utf-8")
    assert table.count(",half,code,100,abc,yes,\n") == 2 * 18
    assert "![Round by round](figures/cifar-short-rounds.png)" in text
    assert (tmp_path / "out" / "figures" / "cifar-short-rounds.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert page.count("Attack success rate, backdoor") == 1


def test_curves_by_round_are_means_over_the_seeds_so_far() -> None:
    runs = [result("Ours", "sign_flip", 3, 0.5, seed=s) for s in (0, 1)] + [result("Krum", "sign_flip", 3, 0.5)]
    rounds = {
        runs[0].entry.id: [record(t, accuracy=0.1 * t) for t in (1, 2, 3)],
        runs[1].entry.id: [record(t, accuracy=0.3 * t) for t in (1, 2)],
        runs[2].entry.id: [record(t, accuracy=0.5) | ({"accuracy": None} if t == 2 else {}) for t in (1, 2, 3)],
    }
    (chart,) = by_round(runs, {id: series_of(read(records)) for id, records in rounds.items()})
    assert (chart.title, chart.xlim) == ("test accuracy", (1.0, 3.0))
    ours, krum = chart.lines
    assert (ours.name, list(ours.xs)) == ("Ours", [1, 2, 3])
    assert list(ours.ys) == pytest.approx([0.2, 0.4, 0.3])
    assert (krum.name, list(krum.xs), list(krum.ys)) == ("Krum", [1, 3], [0.5, 0.5])


def test_a_study_of_many_settings_has_no_curves_by_round() -> None:
    runs = [result("Ours", "sign_flip", 3, 0.5, config=c) for c in range(MOST_CHARTS + 1)]
    series = {r.entry.id: {"ACC": {1: 0.5}, "ASR": {}} for r in runs}
    assert len(by_round(runs[:-1], series)) == MOST_CHARTS
    assert by_round(runs, series) == []
