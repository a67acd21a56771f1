"""A study on populations known by layer: what takes part, what is measured, and what is said about it."""

import io
from collections import Counter

import numpy as np
import pytest
from rich.console import Console

from honestly.show.layer_tables import attacks_run
from honestly.show.stress_page import lines, read
from honestly.show.stress_tables import tables
from honestly.studies.populations import PopulationSource, sources
from honestly.studies.specs import Contestant
from honestly.studies.stress import StressStudy, run

STUDY = StressStudy(
    rules=["mean", "geometric_median", "multi_krum", "median"],
    attacks=["sign_flip", "one_layer:which=largest", "label_flip", "fang_krum"],
    populations=["digits", "isotropic"],
    clients=[10],
    malicious=[0, 4],
)


@pytest.fixture(scope="module")
def cases():
    return run(STUDY)


def test_every_round_of_a_recording_is_a_population():
    found = sources(["digits"], seeds=[0])
    assert len(found) == 8
    assert {s.round for s in found} == {2, 40}
    idle = sources(["digits_idle"], seeds=[0])
    assert [(s.round, s.idle) for s in idle] == [(40, 0.3)] * 2
    assert not idle[0].open(10).grams[:, :3].any()
    assert idle[0].open(10).grams[:, 3:, 3:].any()


def test_files_of_both_kinds_may_lie_in_one_folder(tmp_path):
    from honestly.studies.recordings import read, shipped_recording, write

    np.savez(tmp_path / "updates.npz", honest=np.eye(5))
    write(tmp_path / "layers.npz", read(shipped_recording())[:1])
    found = sources([str(tmp_path)], seeds=[3])
    assert [(s.course != "", s.round, s.seed) for s in found] == [(True, 2, 3), (True, 40, 3), (False, 0, 3)]
    with pytest.raises(ValueError, match="has 20 clients, but 21 were asked for"):
        found[0].open(21)


def test_what_comes_with_the_package_stands_aside_for_more_clients():
    study = StressStudy(
        rules=["mean"], attacks=["sign_flip"], populations=["isotropic", "digits"], clients=[30], malicious=[4]
    )
    assert [task.source.name for task in study.tasks()] == ["isotropic"]
    with pytest.raises(ValueError, match="no population has so many"):
        StressStudy(rules=["mean"], populations=["digits"], clients=[30], malicious=[4])


def test_who_takes_part(cases):
    layered = [case for case in cases if case.layer is not None]
    ran = Counter((case.rule, case.attack) for case in layered)
    assert {rule for rule, _ in ran} == {"mean", "geometric_median", "multi_krum"}, "the median needs coordinates"
    assert {attack for _, attack in ran} == {"none", "sign_flip", "one_layer:which=largest", "label_flip"}
    assert set(ran.values()) == {8}
    others = [case for case in cases if case.layer is None]
    assert {case.attack for case in others} == {"none", "sign_flip", "fang_krum"}
    assert {case.rule for case in others} == set(STUDY.rules)


def test_what_is_measured(cases):
    for case in cases:
        if case.layer is not None:
            assert case.layer >= case.kappa * (1 - 1e-9), "no average exceeds its largest part"
            assert case.where
            assert case.population.startswith("digits-cnn")
            assert case.recorded
    mean = {case.attack: case for case in cases if case.rule == "mean" and case.malicious and case.layer is not None}
    assert mean["sign_flip"].missed == 1.0
    assert mean["sign_flip"].accused == 0.0
    quiet = [case for case in cases if case.malicious == 0 and case.rule == "mean"]
    assert max(case.kappa for case in quiet) < 1e-9


def test_rules_that_need_more_than_gram_matrices():
    told = {spec: Contestant(spec).on_gram for spec in ("bayesian", "nnm+krum", "median", "nnm+median", "fltrust")}
    assert told == {"bayesian": True, "nnm+krum": True, "median": False, "nnm+median": False, "fltrust": False}


def test_cases_can_be_written_and_read(cases, tmp_path):
    (tmp_path / "cases.jsonl").write_text(lines(cases))
    again = read(tmp_path / "cases.jsonl")
    assert [case.layer for case in again] == [case.layer for case in cases]


def test_tables_by_layer_are_apart_from_the_others(cases):
    found = {table.name: table for table in tables(cases, STUDY.attacks)}
    assert {"run", "layer_worst", "layer_mean", "layer_truth", "attack_layer_4", "worst", "mean"} <= set(found)
    worst = {row[0]: row[1:] for row in found["layer_worst"].rows}
    layered = [case for case in cases if case.rule == "mean" and case.malicious == 4 and case.layer is not None]
    assert worst["mean"] == [max(case.kappa for case in layered), max(case.layer for case in layered)]
    assert {row[0] for row in found["worst"].rows} == set(STUDY.rules)
    plain = [case for case in cases if case.rule == "mean" and case.malicious == 4 and case.layer is None]
    assert {row[0]: row[2] for row in found["worst"].rows}["mean"] == max(case.kappa for case in plain)


def test_the_table_says_which_attackers_were_run(cases):
    table = attacks_run(cases, STUDY.attacks)
    assert [row[:5] for row in table.rows] == [["updates", 1, 4, 2, 0], ["by layer", 8, 3, 3, 0]]
    assert "one_layer, label_flip" in table.note
    assert "fang_krum" in table.note
    searching = StressStudy(rules=["mean"], attacks=["adaptive"], populations=["digits"], clients=[5], malicious=[1])
    found = run(searching)
    assert {(case.attack, case.tries) for case in found} == {("adaptive", 120), ("adaptive:goal=layer", 120)}
    assert attacks_run(found).rows[0][3:] == [0, 2, "120"]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_tables_fit_a_terminal_and_cut_no_word(cases, width):
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None)
    found = tables(cases, STUDY.attacks)
    for table in found:
        console.print(table.rich(width))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for table in found:
        assert all(str(row[0]) in text for row in table.rows), table.name


def test_a_source_without_a_course_is_unchanged():
    assert PopulationSource("isotropic", 0).open(5).honest.shape == (5, 2000)
