"""Which reading of the paper a number is of, which form of the rule made it, and why it differs."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from made_studies import fill, finish

from honestly.runs.reader import Rounds
from honestly.runs.rows import canonical
from honestly.runs.store import PlannedRun, Store
from honestly.show.report.accusations import by_form
from honestly.show.report.causes import Setting, causes, noise
from honestly.show.report.detection import Half, Statements
from honestly.show.report.origin import commits_of, reading_of
from honestly.show.report.paper_latex import latex
from honestly.show.report.paper_tables import cells_csv, html, markdown, readings, seeds
from honestly.show.report.published import ROUNDS, Column, Key, compare, count
from honestly.show.report.results import Result, examine
from honestly.show.report.sources import ReportedRun, load, merge
from honestly.studies.study import Study, text_of

MEDIAN = Key("fmnist", 1, "Median", Column("backdoor", 0.5, "ASR"))  # published: 0.12
BOTH = {"last": "", "mean_last_20": ""}


def result(key: Key, accuracy: float, asr: float | None = None, **more: Any) -> Result:
    """A finished run of a cell; `fit`, `crop`, `rounds`, `seed`, `commit`, `span` say how it was made."""
    c = key.column
    settings = {"dataset": key.dataset, "fit": "pad", "crop": 0, "attack": c.attack} | {
        k: more[k] for k in ("fit", "crop", "sizes", "choice") if k in more
    }
    settings["rule"] = settings.pop("choice", key.rule)
    cell = {"dataset": key.dataset, "config": key.config, "attack": c.attack, "alpha": c.alpha, "rule": key.rule}
    rounds = more.get("rounds", ROUNDS[key.dataset])
    entry = ReportedRun(
        repr(more), cell | {"seed": more.get("seed", 0)}, "done", rounds, rounds,
        read=lambda: Rounds([], [], True),
        details={"experiment": json.dumps(settings), "provenance": json.dumps({"commit": more.get("commit", "")})},
    )  # fmt: skip
    numbers = {f"{m}_{s}": v for m, v in (("accuracy", accuracy), ("asr", asr)) for s in BOTH}
    return Result(entry, numbers, more.get("said"), {c.metric: more["span"]} if "span" in more else {})


BACKDOOR = {"fit": "resize", "attack": {"name": "backdoor"}}


@pytest.mark.parametrize(
    ("dataset", "settings", "reading"),
    [
        ("mnist", {"fit": "pad"}, "text"), ("fmnist", {"fit": "resize"}, "code"), ("fmnist", {}, "text"),
        ("cifar10", {"fit": "pad", "crop": 4}, "code"), ("cifar10", {"fit": "resize", "crop": 0}, "text"),
        ("mnist", {**BACKDOOR, "rule": {"name": "mean"}}, "equal"), ("mnist", {**BACKDOOR, "rule": "median"}, "code"),
        ("mnist", {**BACKDOOR, "rule": {"name": "geometric_median"}, "sizes": "images"}, "code"),
        ("mnist", {**BACKDOOR, "attack": "random", "rule": "mean"}, "code"),
        ("mnist", {**BACKDOOR, "rule": "mean", "fit": "pad"}, "text"),
    ],
)  # fmt: skip
def test_the_settings_tell_the_reading(dataset: str, settings: dict[str, Any], reading: str) -> None:
    details = {"experiment": json.dumps({"dataset": dataset, **settings})}
    assert reading_of(ReportedRun("x", {}, "done", 1, 1, read=lambda: Rounds([], [], True), details=details)) == reading


@pytest.mark.parametrize(("study", "reading"), [("paper-tables", "code"), ("paper-text-tables", "text")])
def test_every_run_of_the_shipped_studies_is_of_its_reading(study: str, reading: str) -> None:
    for planned in Study.parse(text_of(study)).entries():
        details = {"experiment": planned.experiment}
        entry = ReportedRun(planned.id, planned.cell, "done", 1, 1, read=lambda: Rounds([], [], True), details=details)
        assert reading_of(entry) == reading


def test_the_code_counts_and_the_text_stands_beside_it() -> None:
    runs = [
        result(MEDIAN, 0.88, 0.24, commit="1234567890+"),
        result(MEDIAN, 0.88, 0.10, fit="resize", commit="abcdef1234"),
        result(MEDIAN, 0.88, 0.14, fit="resize", seed=1, commit="abcdef1234"),
        result(MEDIAN, 0.88, 0.50, fit="resize", rounds=50),
    ]
    found = compare(runs, "last")
    one = found[MEDIAN]
    assert one.counted is not None
    assert one.other_reading is not None
    assert (one.counted.reading, one.counted.seeds.mean, one.counted.seeds.n) == ("code", pytest.approx(0.12), 2)
    assert (one.counted.commits, one.verdict) == ("abcdef1", "reproduced")
    other = one.other_reading
    assert (other.reading, other.seeds.mean, other.commits) == ("text", 0.24, "1234567+")
    assert [m.half for m in one.measured] == [False, False, True]
    every = {"last": found}
    assert "0.120 ± 0.028ᶜ 0.240ᵗ (0.12) =" in markdown(every, {})
    assert r"0.120{\scriptsize$\,\pm\,$0.028}$^{\mathrm{c}}$ 0.240$^{\mathrm{t}}$ (0.12)\,$=$" in latex(every)
    assert "by the authors&#39; code, 100 rounds: -0.000 against" in html(every, {}, None).replace("+0.000", "-0.000")
    rows = [row for row in csv.DictReader(io.StringIO(cells_csv(every, {}))) if row["rule"] == "Median" and row["mean"]]
    rows = [row for row in rows if row["metric"] == "ASR"]
    assert [(row["reading"], row["rounds"], row["verdict"], row["counted"]) for row in rows] == [
        ("code", "100", "reproduced", "yes"), ("text", "100", "worse", "no"), ("code", "50", "half", "no"),
    ]  # fmt: skip
    numbers = "2 by the authors' code, 0 by the authors' code with equal weights, 0 by the paper's text"
    assert f"{numbers}; 2 by more than one" in readings(found)
    assert "2 of 2 seeds. Where there are several seeds, the standard deviation is at most 0.028 (Median" in seeds(
        found
    )


def test_half_of_the_rounds_is_counted_apart() -> None:
    key = Key("cifar10", 2, "Ours", Column("sign_flip", 0.5, "ACC"))
    found = compare([result(key, 0.88, crop=4, rounds=100), result(key, 0.1, crop=4, rounds=60)], "last")
    assert count(found) == {"half": 1, "not run": 539}
    assert found[key].difference == pytest.approx(0.0)
    text = markdown({"last": found}, {})
    assert "1 run for half of the rounds, 539 not run" in text
    assert "0.880ᶜ (0.88) ½" in text


def cause(runs: list[Result], key: Key, shown: Any = None) -> tuple[str, str]:
    return causes(compare(runs, "last"), shown or {})[key]


def test_a_cause_is_named_where_a_run_shows_it() -> None:
    flip = Key("fmnist", 2, "FedAvg", Column("label_flip", 0.5, "ACC"))  # published: 0.29
    assert cause([result(flip, 0.17, span=(0.15, 0.88))], flip) == (
        "rounds", "between 0.15 and 0.88 in our last 20 rounds",
    )  # fmt: skip
    assert cause([result(flip, 0.17, span=(0.16, 0.18))], flip)[0] == "unexplained"
    failed = Key("mnist", 2, "Median", Column("backdoor", 0.5, "ACC"))  # published: 0.41, the others 0.99
    assert cause([result(failed, 0.99, 0.99)], failed)[0] == "failed"
    assert cause([result(failed, 0.99, 0.99)], failed._replace(column=Column("backdoor", 0.5, "ASR")))[0] == "failed"
    ours = Key("fmnist", 2, "Ours", Column("random", 0.5, "ACC"))  # published: 0.83
    paper = ours._replace(rule="Ours (paper)")
    assert cause([result(ours, 0.88), result(paper, 0.84)], ours)[0] == "repairs"
    assert cause([result(ours, 0.88), result(paper, 0.88)], ours)[0] == "unexplained"
    code = cause([result(ours, 0.88, fit="resize")], ours)
    assert code == ("unexplained", "unexplained")


def test_independent_noise_averages_out() -> None:
    mean = Key("fmnist", 2, "FedAvg", Column("random", 0.5, "ACC"))  # published: 0.48
    runs = [result(mean, 0.88)]
    shown = {Setting("fmnist", "FedAvg", 8, 0.5): (0.88, 0.30)}
    assert cause(runs, mean, shown) == ("noise", "with the code's common noise 0.30 instead of 0.88")
    other = mean._replace(dataset="mnist")
    assert cause([result(other, 0.98)], other, shown)[1].startswith("probably, as with FedAvg on fmnist with 8")
    assert cause(runs, mean, {Setting("fmnist", "FedAvg", 8, 0.5): (0.88, 0.88)})[0] == "unexplained"


def test_the_two_forms_of_noise_are_found_among_the_runs(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "results" / "random.toml").read_text(encoding="utf-8")
    with Store.open(tmp_path) as store:
        entries = Study.parse(text).entries()
        store.add(entries)
        for entry in entries:
            finish(store, entry, 2, 0.1 if entry.cell["attack"] == "random" else -0.2, level=True)
    found = noise(examine(load(tmp_path).entries), "last")
    assert set(found) == {
        Setting("fmnist", rule, M, alpha) for rule in ("FedAvg", "Ours") for M in (4, 8) for alpha in (0.5, 1.0)
    }
    for own, common in found.values():
        assert own - common == pytest.approx(0.3, abs=0.02)


def test_padded_images_are_a_cause_where_resized_ones_come_nearer() -> None:
    trimmed = MEDIAN._replace(rule="TrimAvg")  # published: 0.35
    runs = [result(MEDIAN, 0.88, 0.24), result(MEDIAN, 0.88, 0.15, fit="resize"), result(trimmed, 0.88, 0.55)]
    kind, sentence = cause(runs, trimmed)
    assert kind == "images"
    assert "Median, configuration 1, α = 0.5 has 0.15 with resized images, 0.24 with padded ones (0.12)" in sentence
    farther = [result(MEDIAN, 0.88, 0.24), result(MEDIAN, 0.88, 0.45, fit="resize"), result(trimmed, 0.88, 0.55)]
    assert cause(farther, trimmed)[0] == "unexplained"


def test_equal_weights_are_a_cause_where_the_codes_come_nearer() -> None:
    here = Key("mnist", 2, "GeoMed", Column("backdoor", 0.5, "ASR"))  # published: 0.00
    other = here._replace(dataset="fmnist", config=1)  # published: 0.11
    equal: dict[str, Any] = {"fit": "resize", "choice": "geometric_median"}
    runs = [result(here, 0.99, 0.99, **equal), result(other, 0.88, 0.37, **equal)]
    assert cause(runs, other)[0] == "unexplained"
    found = compare([*runs, result(here, 0.99, 0.01, sizes="images", **equal)], "last")
    assert [m.reading for m in found[here].measured] == ["code", "equal"]
    assert found[here].verdict == "reproduced"
    kind, sentence = causes(found, {})[other]
    assert kind == "weights"
    where = "MNIST, GeoMed, configuration 2, α = 0.5"
    assert sentence == f"probably: {where} has 0.01 with the code's weights, 0.99 with equal ones (0.00)"
    assert cause([*runs, result(here, 0.99, 0.99, sizes="images", **equal)], other)[0] == "unexplained"
    beside = other._replace(column=Column("backdoor", 1.0, "ASR"))  # published: 0.10
    away = [result(beside, 0.88, 0.05, **equal), result(beside, 0.88, 0.9, sizes="images", **equal)]
    shown = [*runs, *away, result(here, 0.99, 0.01, sizes="images", **equal)]
    assert cause(shown, other)[0] == "unexplained"  # nearer by, the code's weights lead away
    mean = other._replace(rule="FedAvg")
    more = [result(mean, 0.88, 0.6, fit="resize", choice="mean"), result(here, 0.99, 0.01, sizes="images", **equal)]
    assert cause([*runs, *more], mean)[0] == "unexplained"  # shown for another rule only


def test_the_rule_of_version_0_1_has_a_row_of_its_own(tmp_path: Path) -> None:
    for name, keep in (("new", True), ("old", False)):
        with Store.open(tmp_path / name) as store:
            for number, entry in enumerate(Study.parse(text_of("paper-text-figure1")).entries()):
                experiment = json.loads(entry.experiment)
                if not keep:
                    experiment["rule"].pop("at_most", None)
                store.add([PlannedRun(f"{name}{number}", entry.cell, canonical(experiment), entry.of)])
                finish(store, store.run(f"{name}{number}"), 1)
            store.set_meta(name="paper-text-figure1")
            if not keep:  # a run that nobody can begin any more
                gone = {"rule": {"name": "bayesian", "variant": "robust"}, "seed": 1}
                store.add([PlannedRun("gone", {"rule": "Ours", "seed": 1}, canonical(gone), 1)])
    (study,) = merge([load(tmp_path / "old"), load(tmp_path / "new")])
    rules = [entry.cell["rule"] for entry in study.entries]
    assert rules == ["FedAvg", "Ours (version 0.1)", "Ours (paper)", "FedAvg", "Ours", "Ours (paper)"]


def test_the_later_of_two_records_of_a_run_counts(tmp_path: Path) -> None:
    for name, shift in (("a", 0.0), ("b", 0.1)):
        fill(tmp_path / name, "paper-figure1", rounds=2, shift=lambda cell, shift=shift: shift).close()
    for order in (("a", "b"), ("b", "a")):
        (study,) = merge([load(tmp_path / name) for name in order])
        assert [e.finished for e in study.entries] == [e.finished for e in load(tmp_path / "b").entries]


def test_accusations_of_both_forms_stand_side_by_side() -> None:
    key = Key("mnist", 1, "Ours", Column("sign_flip", 0.5, "ACC"))

    def statements(early: int, late: int) -> Statements:
        return Statements([], [], True, (Half(early, 0, 50), Half(late, 0, 50)))  # type: ignore[arg-type]

    old = key._replace(rule="Ours (version 0.1)")
    table = by_form(
        [
            result(key, 0.9, said=statements(1, 2)),
            result(key, 0.9, said=statements(2, 2), seed=1),
            result(old, 0.9, said=statements(0, 80)),
        ]
    )
    assert table is not None
    assert table.columns == [
        "data set", "configuration", "reading", "half", "Ours", "rounds", "Ours (version 0.1)", "rounds",
    ]  # fmt: skip
    assert table.rows == [
        ["MNIST", "1", "the paper's text", "early", 0.03, 100, 0.0, 50],
        ["MNIST", "1", "the paper's text", "late", 0.04, 100, 1.6, 50],
    ]
    assert table.best == {(1, 6)}, "above the target"
    assert by_form([result(MEDIAN, 0.9)]) is None


def test_commits_are_shortened_and_keep_their_plus() -> None:
    runs = [result(MEDIAN, 0.9, commit=c) for c in ("bbbbbbbbbb+", "aaaaaaaaaa", "bbbbbbbbbb+", "")]
    assert commits_of([r.entry for r in runs]) == "aaaaaaa bbbbbbb+"
