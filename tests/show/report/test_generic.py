"""Tables, rankings and curves of any study, against numbers worked out by hand."""

from typing import Any

import pytest

from honestly.runs.reader import Rounds
from honestly.show.report.curves import ablation
from honestly.show.report.generic import detection, ranking, tables
from honestly.show.report.results import Result
from honestly.show.report.sources import ReportedRun


def result(
    accuracy: float | None, asr: float | None = None, status: str = "done", rounds: int = 20, **cell: Any
) -> Result:
    entry = ReportedRun("x", cell, status, rounds, rounds, read=lambda: Rounds([], [], True))
    numbers = {f"{m}_{s}": v for m, v in (("accuracy", accuracy), ("asr", asr)) for s in ("last", "mean_last_20")}
    return Result(entry, numbers, None)


def test_rules_by_the_other_axes_with_mean_and_spread_over_seeds() -> None:
    runs = [
        result(0.5, rule="a", attack="x", seed=0), result(0.7, rule="a", attack="x", seed=1),
        result(0.9, rule="b", attack="x", seed=0), result(0.1, 0.8, rule="b", attack="y", seed=0),
        result(0.2, 0.3, rule="a", attack="y", seed=0), result(0.99, rule="a", attack="x", seed=2, status="running"),
    ]  # fmt: skip
    found = {t.name: t for t in tables("s", runs)}
    assert list(found) == ["ACC-last", "ACC-mean_last_20", "ASR-last", "ASR-mean_last_20"]
    accuracy = found["ACC-last"]
    assert accuracy.columns == ["rule", "x", "y"]
    assert accuracy.rows == [["a", "0.600 ± 0.141", "0.200"], ["b", "0.900", "0.100"]]
    assert accuracy.best == {(1, 1), (0, 2)}
    success = found["ASR-last"]
    assert success.rows == [["a", "0.300"], ["b", "0.800"]]
    assert success.best == {(0, 1)}  # a lower success rate is the better one
    assert "y" in success.title


def test_a_mean_of_the_last_20_rounds_needs_20() -> None:
    short = [result(0.1 * k, rule="ab"[k % 2], attack="xy"[k // 2], rounds=19, malicious=k) for k in range(4)]
    assert {t.name for t in tables("s", short)} == {"ACC-last"}
    assert (
        "(last round, mean over seeds)"
        in ranking([result(0.5, rule=r, attack=a, rounds=4) for r in "ab" for a in "xy"])[0].note
    )
    assert (
        ablation([result(0.5, rule="a", attack="x", malicious=m, rounds=5) for m in (0, 4)])[0].lines[0].ys == [0.5] * 2
    )


def test_many_axes_become_several_tables_and_no_run_is_lost() -> None:
    values = iter(range(1, 10_000))
    runs = [
        result(next(values) / 1000, rule=r, attack=a, dataset=d, alpha=al)
        for r in "ab" for a in ("w", "x", "y", "z") for d in ("m", "f", "c") for al in (0.5, 1.0, 2.0)
    ]  # fmt: skip
    found = [t for t in tables("s", runs) if t.name == "ACC-last"]
    shown = sorted(float(str(cell)) for t in found for row in t.rows for cell in row[1:])
    assert shown == [pytest.approx(v / 1000) for v in range(1, 73)]
    assert all(len(t.columns) <= 13 for t in found)
    assert len({t.title for t in found}) == len(found)


def test_a_study_without_rules_or_axes_has_tables_or_none() -> None:
    assert tables("s", [result(0.5)]) == []
    (last, mean) = tables("s", [result(0.5, lr=0.1), result(0.6, lr=0.2)])
    assert last.columns == ["lr", "test accuracy"]
    assert last.rows == mean.rows == [["0.1", "0.500"], ["0.2", "0.600"]]


def test_the_ranking_is_by_the_worst_case_over_what_all_rules_went_through() -> None:
    runs = [
        result(0.9, rule="good", attack="x"), result(0.8, 0.1, rule="good", attack="y"),
        result(0.95, rule="fooled", attack="x"), result(0.9, 0.9, rule="fooled", attack="y"),
        result(0.05, rule="broken", attack="x"), result(0.95, 0.0, rule="broken", attack="y"),
        result(0.0, rule="good", attack="z"),  # the others were spared this attack: it does not count
    ]  # fmt: skip
    (table,) = ranking(runs)
    assert [row[0] for row in table.rows] == ["good", "fooled", "broken"]
    assert [row[1] for row in table.rows] == [0.8, pytest.approx(0.1), 0.05]
    assert table.rows[0][2:6] == [0.8, "y", 0.1, "y"]
    assert "2 settings" in table.note
    assert ranking([result(0.9, rule="alone", attack=a) for a in "xy"]) == []


def test_each_data_set_has_its_own_ranking_and_warm_ups_have_none() -> None:
    runs = [result(0.9, rule=r, attack=a, dataset=d) for r in "ab" for a in "xy" for d in ("m", "f")]
    warm = Result(
        ReportedRun("w", {"dataset": "m", "warm_up": 200}, "done", 1, 1, read=lambda: Rounds([], [], True)), {}, None
    )
    assert [t.title for t in ranking([*runs, warm])] == ["Worst case of each rule, m", "Worst case of each rule, f"]
    assert all("warm" not in str(t.columns) for t in tables("s", [*runs, warm]))


def test_ablation_curves_share_the_point_without_attackers() -> None:
    x, y = {"rule": "a", "attack": "x"}, {"rule": "a", "attack": "y"}
    runs = [
        result(0.9, **x, malicious=0.0, seed=0), result(0.8, **x, malicious=0.2, seed=0),
        result(0.6, **x, malicious=0.2, seed=1), result(0.5, 0.7, **y, malicious=0.2, seed=0),
    ]  # fmt: skip
    charts = ablation(runs)
    assert [c.title for c in charts] == [
        "test accuracy under x", "test accuracy under y", "attack success rate under y"
    ]  # fmt: skip
    (first,), (second,), (success,) = (c.lines for c in charts)
    assert (first.xs, first.ys, first.spread) == (
        [0.0, 0.2],
        [0.9, pytest.approx(0.7)],
        [0.0, pytest.approx(0.1414, abs=1e-4)],
    )
    assert (second.xs, second.ys) == ([0.0, 0.2], [0.9, 0.5])
    assert (success.xs, success.ys) == ([0.2], [0.7])
    assert ablation([result(0.9, rule="a", malicious=0.4)]) == []


def test_detection_needs_rules_that_say_something() -> None:
    assert detection([result(0.9, rule="a")]) == ({}, [])
