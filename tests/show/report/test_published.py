"""The paper's 540 numbers: all of them, in the paper's layout, each with the right verdict."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from honestly.runs.reader import Rounds
from honestly.show.report.causes import causes
from honestly.show.report.differences import differences
from honestly.show.report.paper_tables import cells_csv, counts, html, markdown, sentence
from honestly.show.report.published import (
    DATASETS,
    ROUNDS,
    RULES,
    TABLES,
    Column,
    Key,
    compare,
    count,
    published_numbers,
    verdict,
)
from honestly.show.report.results import Result
from honestly.show.report.sources import ReportedRun


def result(cell: dict[str, Any], accuracy: float, asr: float | None = None, status: str = "done") -> Result:
    rounds = ROUNDS[cell["dataset"]]
    entry = ReportedRun("x", cell, status, rounds, rounds, read=lambda: Rounds([], [], True))
    numbers = {f"{m}_{s}": v for m, v in (("accuracy", accuracy), ("asr", asr)) for s in ("last", "mean_last_20")}
    return Result(entry, numbers, None)


def cell_of(key: Key, seed: int = 0) -> dict[str, Any]:
    c = key.column
    return {"dataset": key.dataset, "config": key.config, "attack": c.attack, "alpha": c.alpha, "rule": key.rule,
            "seed": seed}  # fmt: skip


def everything(shift: float = 0.0) -> list[Result]:
    """A run for each cell with the published numbers, accuracy shifted and ASR shifted the other way."""
    found = []
    for key, value in published_numbers().items():
        if key.column.metric == "ACC":
            asr = published_numbers().get(key._replace(column=key.column._replace(metric="ASR")))
            found.append(result(cell_of(key), value + shift, None if asr is None else asr - shift))
    return found


def test_the_six_tables_hold_each_of_the_540_numbers_once() -> None:
    keys = Counter(
        Key(dataset, table.config, rule, column)
        for table in TABLES for dataset in DATASETS for rule in RULES for column in table.columns
    )  # fmt: skip
    assert set(keys.values()) == {1}
    assert set(keys) == set(published_numbers())
    assert len(published_numbers()) == 540
    assert sum(key.column.metric == "ASR" for key in published_numbers()) == 108
    # three numbers as they stand in the paper
    assert published_numbers()[Key("fmnist", 1, "TrimAvg", Column("backdoor", 1.0, "ASR"))] == 0.43
    assert published_numbers()[Key("cifar10", 1, "FedAvg", Column("label_flip", 0.5, "ACC"))] == 0.41
    assert published_numbers()[Key("mnist", 2, "Median", Column("backdoor", 0.5, "ACC"))] == 0.41


@pytest.mark.parametrize(
    ("found", "metric", "expected"),
    [
        (0.52, "ACC", "reproduced"), (0.48, "ACC", "reproduced"), (0.5201, "ACC", "better"), (0.4799, "ACC", "worse"),
        (0.52, "ASR", "reproduced"), (0.5201, "ASR", "worse"), (0.4799, "ASR", "better"), (None, "ACC", "not run"),
    ],
)  # fmt: skip
def test_verdicts(found: float | None, metric: str, expected: str) -> None:
    assert verdict(found, 0.5, metric) == expected


@pytest.mark.parametrize(("shift", "name"), [(0.0, "reproduced"), (0.03, "better"), (-0.03, "worse")])
def test_a_shift_of_all_runs_moves_all_540_verdicts(shift: float, name: str) -> None:
    assert count(compare(everything(shift), "last")) == {name: 540}


def test_unfinished_runs_count_as_not_run() -> None:
    runs = everything()
    runs = [replace(r, entry=replace(r.entry, status="running")) if r.cell["dataset"] == "cifar10" else r for r in runs]
    found = compare(runs, "last")
    assert count(found) == {"reproduced": 360, "not run": 180}
    assert count(found, dataset="cifar10") == {"not run": 180}
    assert "360 reproduced (within 0.02), 0 better, 0 worse, 180 not run" in sentence(found, "last")


def test_seeds_are_averaged_and_axes_may_be_text() -> None:
    key = Key("fmnist", 2, "Ours", Column("backdoor", 0.5, "ACC"))
    cells = [cell_of(key, seed) for seed in range(3)]
    cells[1] |= {"config": "2", "alpha": "0.5"}
    found = compare([result(c, a, 0.1) for c, a in zip(cells, (0.80, 0.82, 0.90), strict=True)], "mean_last_20")[key]
    assert found.seeds is not None
    assert found.seeds.n == 3
    assert found.seeds.mean == pytest.approx(0.84)
    assert found.seeds.sd == pytest.approx(0.0529150262)


def test_the_published_algorithm_is_shown_beside_ours_and_not_counted() -> None:
    key = Key("mnist", 1, "Ours", Column("sign_flip", 0.5, "ACC"))
    extra = result({**cell_of(key), "rule": "Ours (paper)"}, 0.1)
    found = compare([*everything(), extra], "last")
    assert count(found) == {"reproduced": 540}
    assert found[key._replace(rule="Ours (paper)")].verdict == "worse"
    assert "Ours (paper)" not in str(compare(everything(), "last"))


def test_tables_say_the_same_in_every_form() -> None:
    runs = [r for r in everything(0.03) if r.cell["rule"] == "Ours" and r.cell["dataset"] != "cifar10"]
    found = {s: compare(runs, s) for s in ("last", "mean_last_20")}
    # 60 of ours are better and 480 were not run, in both statistics
    assert counts(found).rows[0][1:] == [0, 60, 0, 0, 480]
    why = {statistic: causes(one, {}) for statistic, one in found.items()}
    page, text, table = html(found, why, None), markdown(found, why), cells_csv(found, why)
    assert page.count('<td class="better"') == 120
    assert page.count('<td title="not run"') == 960
    assert text.split("<details>")[0].count("▲") == 121  # once in the note
    assert text.count("| · (") == 2 * 300
    assert text.count("| CIFAR-10 | not run |") == 12
    assert table.count(",better,text,") == 120
    assert table.count(",yes,unexplained; not run by the authors' code's reading\n") == 120
    assert len(table.splitlines()) == 1081
    assert "<summary>Better than published, last round: 60</summary>" in text
    assert "Worse than published" not in text


def test_where_ours_differ_from_the_papers() -> None:
    only = [r for r in everything(0.03) if r.cell["rule"] == "Ours" and r.cell["dataset"] == "mnist"]
    only[0] = result(only[0].cell, only[0].numbers["accuracy_last"] - 0.5)  # sign flip, configuration 1, alpha 0.5
    table = differences(compare(only, "last"), "last")
    rows = {row[0]: row[1:] for row in table.rows}
    assert table.columns[1:] == ["SignFlip ACC", "Backdoor ACC", "Backdoor ASR", "LabelFlip ACC", "Random ACC"]
    assert rows["Ours"] == [
        "-0.05 (-0.47 to +0.03, 6)", "+0.03 (+0.03 to +0.03, 6)", "-0.03 (-0.03 to -0.03, 6)",
        "+0.03 (+0.03 to +0.03, 6)", "+0.03 (+0.03 to +0.03, 6)",
    ]  # fmt: skip
    assert set(rows["Krum"]) == {"·"}
    text = markdown({"last": compare(only, "last")}, {})
    assert "-0.05 (-0.47 to +0.03, 6)" in text
