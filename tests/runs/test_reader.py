"""Rounds of simulations and federations are read in one form, for any client names."""

import json
from pathlib import Path

from made_studies import record

from honestly.federation.history import History
from honestly.federation.record import Round
from honestly.runs.reader import read, read_rounds

HOSTILE = "<script>alert(1)</script>|`x`\n![](http://evil/x.png)"


def federation(folder: Path) -> History:
    """Three clients, one of which joins late and one of which is refused."""
    history = History(folder)
    for t in range(1, 5):
        here = ("7", HOSTILE) if t < 3 else ("late", "7", HOSTILE)
        honesty = dict.fromkeys(here, 0.9) | {"7": 0.1}
        refused = {HOSTILE: "tensor '<b>' is NaN"} if t == 4 else {}
        history.add(
            Round(t, here, honesty, None, refused, kept=t == 2, status="ok", attention=False,
                  evaluation={"accuracy": 0.2 * t})
        )  # fmt: skip
        history.write()
    return history


def test_a_federations_history_is_read_with_its_names(tmp_path: Path) -> None:
    federation(tmp_path)
    rounds = read_rounds(tmp_path / "rounds.jsonl")
    assert not rounds.known
    assert rounds.clients == ["7", HOSTILE, "late"]
    assert [r.accused for r in rounds.records] == [[0]] * 4
    assert rounds.records[0].participants == [0, 1]
    assert rounds.records[3].excluded == [1]
    assert (rounds.records[3].honesty or ())[2] == 0.9
    assert (rounds.records[0].honesty or ())[2] is None
    assert [r.accuracy for r in rounds.records] == [0.2, 0.4, 0.6000000000000001, 0.8]


def test_rosters_that_differ_from_round_to_round_are_aligned_by_name() -> None:
    rows = [
        {"round": 1, "clients": ["a", "b"], "honesty": [1.0, 0.0], "accused": ["b"], "excluded": []},
        {"round": 2, "clients": ["b", "c"], "honesty": [0.2, 0.7], "accused": ["b"], "excluded": ["x"]},
    ]
    rounds = read(rows)
    assert rounds.clients == ["a", "b", "c", "x"]
    assert rounds.records[1].honesty == [None, 0.2, 0.7, None]
    assert rounds.records[1].participants == [1, 2]
    assert rounds.records[1].excluded == [3]


def test_a_simulations_rounds_keep_their_numbers() -> None:
    rows = [record(t, K=6, M=2) for t in (1, 2)]
    rounds = read(rows)
    assert rounds.known
    assert rounds.clients == list("012345")
    assert rounds.records[0].attacked == [4, 5]
    assert rounds.records[0].accused == rows[0]["accused"]
    assert read([record(1, rule="median")]).records[0].accused is None


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    good = [json.dumps(record(t)) for t in (1, 5)]
    bad = ["{cut", "[]", "null", '{"round": 2, "attacked": [-1]}', '{"round": 3, "attacked": "x"}']
    bad += ['{"round": 4, "x": ' + "[" * 100_000, '{"round": 1e30}', '{"round": -1}']
    lines = [good[0], *bad, '{"round": 4, "accuracy": "high"}', good[1]]
    (tmp_path / "rounds.jsonl").write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    rounds = read_rounds(tmp_path / "rounds.jsonl")
    assert [r.round for r in rounds.records] == [1, 5]
    assert rounds.damaged == 9
