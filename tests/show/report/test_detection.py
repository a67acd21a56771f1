"""Detection quality against naive counts."""

import numpy as np
import pytest
from made_studies import record

from honestly.runs.reader import read
from honestly.show.report.accusations import accusations
from honestly.show.report.detection import quality, reliability_chart, roc, roc_chart, statements
from honestly.show.report.results import Result
from honestly.show.report.sources import ReportedRun
from honestly.studies.scores import detection_auc


def test_auc_is_the_chance_that_an_honest_client_scores_higher() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        score = rng.integers(0, 6, 40) / 5  # with many ties
        honest = rng.integers(0, 2, 40).astype(float)
        alarms, hits = roc(score, honest)
        expected = detection_auc(score, (honest == 0).tolist())
        assert np.trapezoid(hits, alarms) == pytest.approx(expected)
        # every point is a threshold: those at or below it are accused
        for cut, (a, h) in zip(np.unique(score), zip(alarms[1:], hits[1:], strict=True), strict=True):
            assert a == pytest.approx(np.mean(score[honest == 1] <= cut))
            assert h == pytest.approx(np.mean(score[honest == 0] <= cut))


def test_without_attackers_there_is_no_area_but_a_brier_score() -> None:
    found = quality([statements(read([record(1, M=0), record(2, M=0)]))])  # type: ignore[list-item]
    assert found is not None
    assert found.auc is None
    assert found.brier is not None
    assert roc_chart({"x": found}).lines == []
    assert reliability_chart({"x": found}).lines != []


def test_statements_are_about_participating_clients() -> None:
    row = record(1, K=4, M=1) | {"honesty": [1.0, 0.6, None, 0.1], "participants": [0, 1, 3], "false_accusations": 0}
    said = statements(read([row]))
    assert said is not None
    assert said.score.tolist() == [1.0, 0.6, 0.1]
    assert said.honest.tolist() == [1.0, 1.0, 0.0]
    found = quality([said, said])
    assert found is not None
    assert found.brier == pytest.approx((0.0 + 0.16 + 0.01) / 3)
    assert found.auc == 1.0
    assert found.statements == 6


def test_weights_are_no_probabilities_and_some_rules_say_nothing() -> None:
    found = quality([statements(read([record(t, rule="multi_krum") for t in range(1, 4)]))])  # type: ignore[list-item]
    assert found is not None
    assert found.brier is None
    assert found.bins == []
    assert found.auc is not None
    assert statements(read([record(1, rule="median")])) is None
    assert quality([]) is None


def test_accusations_are_counted_by_setting_early_and_late() -> None:
    def run(name: str, rule: str, attack: str, false: list[int]) -> Result:
        rows = [record(t + 1, K=4, M=1) | {"false_accusations": n, "misses": 1} for t, n in enumerate(false)]
        cell = {"dataset": name, "attack": attack, "rule": rule, "seed": 0}
        entry = ReportedRun(f"{name}{rule}{attack}", cell, "done", len(rows), len(rows), read=lambda: read(rows))
        return Result(entry, {}, statements(read(rows)))

    one, two = run("a", "Ours", "x", [0, 0, 1, 2, 3]), run("a", "Ours", "y", [0, 1, 0, 0, 0])
    assert accusations([one, two]) is None, "one setting: the table of rules says all there is"
    found = accusations([one, run("b<", "Ours", "x", [1, 0]), two])
    assert found is not None
    assert found.rows == [
        ["Ours, a", 0.25, 1.0, 1.0, 1.0, 10],  # two of five rounds are early
        ["Ours, b<", 1.0, 0.0, 1.0, 1.0, 2],
    ]
    assert "b&lt;" in found.html()
    krum = Result(one.entry, {}, statements(read([record(1, rule="multi_krum"), record(2, rule="multi_krum")])))
    assert accusations([krum, one]) is None, "weights accuse nobody"
