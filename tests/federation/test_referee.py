"""The decision of a round without any framework."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from full_disk import full

from honestly.federation import History, Referee, Reply, Round
from honestly.federation.npy import write_npy
from honestly.federation.settings import referee_of
from honestly.rules import Bayesian, Mean
from honestly.rules.memory import Memory
from honestly.rules.rule import Geometry, Mix, Rule


def replies(K: int = 6, seed: int = 0) -> list[Reply]:
    rng = np.random.default_rng(seed)
    return [
        Reply(k, update={"w": rng.normal(1, 0.1, 20).astype("f4")}, size=10, metrics={"loss": 0.1}) for k in range(K)
    ]


class Counting(Mean):
    """A rule with a memory: it counts rounds in a class variable, where a real rule has a field."""

    seen: ClassVar[list[dict[str, Any]]] = []

    def mix(self, geometry: Geometry) -> Mix:
        return Mix.of_weights(np.full(geometry.K, 1 / geometry.K), diagnostics={"ids": tuple(geometry.ids)})

    def after(self, diagnostics: Any) -> Rule:
        self.seen.append(dict(diagnostics))
        return self


class Broken(Mean):
    def mix(self, geometry: Geometry) -> Mix:
        raise ZeroDivisionError("a bug in someone's rule")


def test_a_rule_advances_with_every_round_except_kept_ones() -> None:
    Counting.seen.clear()
    referee = Referee(Counting())
    referee.judge(1, replies())
    referee.judge(2, replies()[:2], asked=range(6))
    referee.judge(3, [*replies(), Reply(9, fault="late")])
    assert [found["ids"] for found in Counting.seen] == [(0, 1, 2, 3, 4, 5)] * 2


@pytest.mark.parametrize("asked", [iter(range(7)), np.arange(7), dict.fromkeys(range(7))])
def test_who_was_asked_may_come_in_any_form(asked: Any) -> None:
    value, record = Referee("mean").judge(1, replies(), asked=asked)
    assert value is not None
    assert record.excluded == {6: "sent no reply"}


def test_a_round_without_an_average_restores_nobodys_vote() -> None:
    liars = [Reply(k, update={"w": np.full(20, -4.0, "f4")}, size=10, metrics={"loss": 9.0}) for k in (6, 7)]
    referee = Referee("bayesian")
    _, record = referee.judge(1, [*replies(), *liars])
    assert record.accused == (6, 7)
    value, _ = referee.judge(2, replies(), asked=range(20))  # no quorum
    assert value is None
    reports = [Reply(k, metrics={"loss": 0.1 if k < 2 else 9.0}) for k in (0, 1, 6, 7, 8)]
    assert referee.believed(reply.client for reply in reports) == {0, 1}  # client 8 sent no reply in round 2
    metrics, _ = referee.evaluation(2, reports)
    assert metrics == {"loss": 0.1}


def test_a_round_is_doubtful_if_most_clients_are_refused_or_disbelieved() -> None:
    good = replies(7)
    liars = [
        Reply(100 + k, update={"w": -9 * r.update["w"]}, size=10, metrics={"loss": 0.1}) for k, r in enumerate(good[:3])
    ]
    broken = [Reply(200 + k, fault="broken") for k in range(3)]
    value, record = Referee("bayesian", doubt="keep").judge(1, [*good[:4], *liars, *broken])
    assert value is None
    assert "kept: excluded and disbelieved clients leave 4.0 of 10" in record.status
    value, record = Referee("bayesian").judge(1, [*good[:4], *liars, *broken])
    assert value is not None
    assert record.attention
    assert "excluded and disbelieved" in record.status


@pytest.mark.parametrize("K", range(2, 14))
def test_one_refused_client_never_stops_the_round(K: int) -> None:
    """Whatever the others send: the rule believes a majority of those it sees, which is half of all or more."""
    for seed in range(20):
        rng = np.random.default_rng([K, seed])
        wild = [Reply(k, update={"w": rng.normal(size=200) + rng.choice([-9, 0, 9])}) for k in range(K)]
        _, record = Referee("bayesian").judge(1, [*wild, Reply(99, fault="broken")])
        assert not record.kept, record.status


def test_a_rule_with_memory_keeps_its_suspicion(tmp_path: Path) -> None:
    referee = Referee(Bayesian(memory=Memory()), history=tmp_path)
    liar = Reply(77, update={"w": np.full(20, -9, "f4")}, size=10, metrics={"loss": 0.1})
    accomplice = Reply(78, update={"w": np.full(20, -8, "f4")}, size=10, metrics={"loss": 0.1})
    for number in range(1, 4):
        referee.judge(number, [*replies(seed=number), liar, accomplice])
    memory = Memory.from_dict(json.loads((tmp_path / "memory.json").read_text()))
    assert memory == referee.rule.memory  # type: ignore[attr-defined]
    suspicion = memory.prior([77, 0])
    assert suspicion[0] < -1 < suspicion[1]


@pytest.mark.parametrize("kind", [np.int64, np.float32])
@pytest.mark.parametrize("clients", [1, 6])
def test_numpy_numbers_are_sizes_and_metrics(clients: int, kind: Any) -> None:
    """As FLARE sends them, where a client counts or computes with NumPy."""
    kinds = [kind] * clients + [int] * (6 - clients)
    found = [
        Reply(k, update=r.update, size=make(10 + k), metrics={"loss": make(1), "hits": [make(2), 3]})
        for k, (r, make) in enumerate(zip(replies(), kinds, strict=True))
    ]
    value, record = Referee("bayesian").judge(1, found)
    assert value is not None
    assert not record.excluded
    assert record.claimed is not None
    assert record.claimed[5] > record.claimed[0]
    assert record.metrics == {"loss": 1.0, "hits": [2.0, 3.0]}


def test_a_bug_in_a_rule_keeps_the_old_model_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    value, record = Referee(Broken()).judge(1, replies())
    assert value is None
    assert "ZeroDivisionError" in record.status
    assert "a bug in someone's rule" in caplog.text


def test_a_layout_unlike_the_references_is_refused_from_any_client() -> None:
    _, record = Referee("mean").judge(1, replies(), reference={"v": np.zeros(20, "f4")})
    assert record.kept
    assert len(record.excluded) == 6


def test_a_full_disk_loses_the_files_but_not_the_round(tmp_path: Path) -> None:
    said: list[str] = []
    referee = Referee("mean", history=tmp_path / "h", log=lambda level, text: said.append(text))
    (tmp_path / "h").rmdir()
    value, _ = referee.judge(1, replies())
    assert value is not None
    assert any("could not be written" in text for text in said)


def test_a_reader_never_sees_half_a_history(tmp_path: Path) -> None:
    history = History(tmp_path)
    done = threading.Event()
    problems: list[Exception] = []
    seen: set[int] = set()

    def read() -> None:
        while not done.is_set():
            try:
                lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
                seen.add(len(lines))
                assert [json.loads(line)["round"] for line in lines] == list(range(1, len(lines) + 1))
                assert len((tmp_path / "rounds.csv").read_text().splitlines()) % 50 == 1
            except FileNotFoundError:
                pass
            except Exception as error:
                problems.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1, 40):
        clients = tuple(range(50))
        honesty = dict.fromkeys(clients, float("nan"))
        history.add(Round(number, clients, honesty, None, {3: "=HYPERLINK(evil)"}, False, "ok", False))
        history.write()
    done.set()
    reader.join(10)
    assert not problems
    assert len(seen) > 1
    assert "'=HYPERLINK" in (tmp_path / "rounds.csv").read_text()
    assert json.loads((tmp_path / "rounds.jsonl").read_text().splitlines()[0])["honesty"][0] is None


@pytest.mark.parametrize("rule", [3, None, Mean])
def test_a_wrong_rule_is_named(rule: Any) -> None:
    with pytest.raises(ValueError, match="rule"):
        Referee(rule)


@pytest.mark.parametrize("pre", ["nnm:f=1+arc:f=1", ["nnm:f=1", "arc:f=1"], [["nnm", {"f": 1}], ("arc", {"f": 1})]])
def test_mixers_in_a_configuration(pre: Any) -> None:
    assert str(referee_of(rule="mean", pre=pre).pipeline) == str(referee_of(rule="nnm:f=1+arc:f=1+mean").pipeline)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pre": ["nnm", {"f": 1}]},
        {"pre": [["nnm"]]},
        {"pre": [["nnm", None]]},
        {"pre": [{"nnm": {"f": 1}}]},
        {"pre": [3]},
        {"settings": "f=1"},
        {"settings": [1]},
        {"rule": None},
    ],
)
def test_wrong_settings_in_a_configuration_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(wrong))} (has|is) .*expected"):
        referee_of(**wrong)


def test_forgetting_needs_a_rule_with_a_memory() -> None:
    with pytest.raises(ValueError, match=r"forgetting=0\.5: only the rule 'bayesian' has such a memory, not 'median'"):
        referee_of(rule="median", forgetting=0.5)


def _steps(referee: Referee, model: dict[str, Any], rounds: int) -> dict[str, Any]:
    for number in range(1, rounds + 1):
        model, _ = referee.judge(number, replies(seed=number), reference=model)
    return model


@pytest.mark.parametrize("harm", ["cut", "flip", "an array", "empty"])
def test_damaged_moments_are_a_fresh_start_of_the_optimiser(tmp_path: Path, harm: str) -> None:
    start = {"w": np.zeros(20, "f4")}
    model = _steps(Referee("mean", history=tmp_path, server="fedadam"), start, 2)
    file = tmp_path / "server.npz"
    raw = file.read_bytes()
    at = raw.rindex(b"\x93NUMPY") + 130  # in the numbers of the last array
    flipped = raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :]
    file.write_bytes({"cut": raw[:-30], "flip": flipped, "an array": write_npy(np.ones(3)), "empty": b""}[harm])
    again = _steps(Referee("mean", history=tmp_path, server="fedadam"), model, 2)
    fresh = _steps(Referee("mean", server="fedadam"), model, 2)
    np.testing.assert_array_equal(again["w"], fresh["w"])


def test_the_optimiser_goes_on_if_its_moments_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = {"w": np.zeros(20, "f4")}
    lines: list[str] = []
    monkeypatch.setattr("honestly.federation.server.write_atomically", full)
    referee = Referee("mean", history=tmp_path, server="fedadam", log=lambda _, text: lines.append(text))
    np.testing.assert_array_equal(
        _steps(referee, start, 2)["w"], _steps(Referee("mean", server="fedadam"), start, 2)["w"]
    )
    assert sum("the moments could not be written" in line for line in lines) == 2
