"""One sentence that summarises the run, and messages that are shown once."""

from __future__ import annotations

from typing import Any

import pytest

from honestly.runs.reader import read_record
from honestly.runs.record import RoundRecord
from honestly.show.run import RunView
from honestly.show.verdict import in_question, messages, sentence, statuses


def records(
    T: int, *, attacked: Any = (), accused: Any = (), accuracy: float = 0.9, **more: Any
) -> list[dict[str, Any]]:
    """Rounds with the same attackers and accused in each, or by round where a function is given."""
    at = lambda what, t: list(what(t) if callable(what) else what)  # noqa: E731
    return [
        {"round": t, "accuracy": accuracy, "asr": None, "attacked": at(attacked, t), "accused": at(accused, t),
         "honesty": [1.0] * 4, "participants": [0, 1, 2, 3], "excluded": [], "reasons": {}, "status": "", **more}
        for t in range(1, T + 1)
    ]  # fmt: skip


def typed(found: list[dict[str, Any]]) -> list[RoundRecord]:
    return [read_record(one)[0] for one in found]


def run(title: str, found: list[dict[str, Any]], known: bool = True) -> RunView:
    return RunView(title, typed(found), ["a", "b", "c", "d"], known)


def test_the_story_of_the_demo() -> None:
    fooled = run("FedAvg", [{**r, "honesty": None, "accused": []} for r in records(15, attacked=[2, 3], accuracy=0.13)])
    calm = run("FedAvg, nobody lies", records(15))
    doubts = lambda t: [2, 3, *([0] if t in (4, 9) else [])]  # noqa: E731
    ours = run("the Bayesian rule", records(15, attacked=[2, 3], accused=doubts, accuracy=0.97))
    assert sentence([calm, fooled, ours]) == (
        "2 of 4 clients lied; FedAvg ended at 13 %, the Bayesian rule at 97 %; all 2 caught from round 1, "
        "one honest client accused in 2 of 15 rounds."
    )
    assert in_question([calm, ours, fooled]) == 1


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (records(5), "Nobody lied; the accuracy ended at 90 %; no client accused."),
        (records(5, accused=[0, 1]), "Nobody lied; the accuracy ended at 90 %; 2 honest clients accused in 5 of"),
        (records(5, attacked=[3], accused=lambda t: [3] if t > 2 else []), "the liar caught from round 3, no honest"),
        (records(5, attacked=[2, 3], accused=lambda t: [3]), "1 of 2 liars caught per round on average"),
        (records(5, attacked=[2, 3]), "no liar was caught"),
        (records(5, attacked=[2, 3], weights=[0.5, 0.4, 0.06, 0.04]),
         "no liar was caught (all of them together had at most 10 % of the weight)"),
        (records(4, attacked=lambda t: [3] if t % 2 else [], accused=[3]),
         "the liar caught from round 1, no honest client accused, 1 liar accused while behaving in 2 of 4 rounds."),
        (records(1, attacked=[3], accused=[3]), "the liar caught from round 1"),
        ([{**r, "asr": 0.25} for r in records(3, attacked=[3])], "the accuracy ended at 90 % (attack success 25 %)"),
        ([{**r, "accused": [], "excluded": [3]} for r in records(3, attacked=[3])], "the liar caught from round 1"),
        ([{**r, "excluded": [0]} for r in records(3)], "1 honest client excluded."),
        ([], "No round is finished yet."),
    ],
)  # fmt: skip
def test_other_stories(found: list[dict[str, Any]], says: str) -> None:
    assert says in sentence([run("r", found)])


def test_a_federation_knows_no_truth() -> None:
    found = records(12, accused=lambda t: [2] if t > 3 else [], accuracy=0.8)
    assert sentence([run("r", found, known=False)]) == (
        "12 rounds with 4 clients; accused: c in 9 of 12 rounds; the accuracy ended at 80 %."
    )
    quiet = sentence([run("r", records(2, accuracy=0.8), known=False)])
    assert quiet == "2 rounds with 4 clients; nobody was accused or excluded; the accuracy ended at 80 %."


def test_messages_are_counted_and_said_once() -> None:
    found = [
        {"round": t, "reasons": {str(k): f"tensor 'w' is too large at {k * t}: its square overflows" for k in range(8)}}
        for t in range(1, 16)
    ]
    found[0]["reasons"]["9"] = "it is NaN"
    assert messages(typed(found)) == [
        "8 clients, 15 rounds: tensor 'w' is too large at 0: its square overflows", "1 client, 1 round: it is NaN"
    ]  # fmt: skip


def test_accusations_that_differ_in_the_company_alone_are_one_message() -> None:
    def errs(*company: str) -> str:
        return f"it errs in the same direction as {', '.join(company)}, most of all in 0.weight"

    names = ["Uppsala", "Lund", "Umea"]
    company = {name: errs(*(other for other in names if other != name)) for name in names}
    found = [
        {"round": 1, "accusations": company},
        {"round": 2, "accusations": {"Lund": errs("Umea"), "Kiruna": "it lies"}},
    ]
    assert messages(typed(found), "accusations") == [
        "3 clients, 2 rounds: it errs in the same direction as Lund, Umea, most of all in 0.weight",
        "1 client, 1 round: it lies",
    ]
    many = [{"round": 1, "accusations": {str(k): f"layer {'x' * k}" for k in range(30)}}]
    assert len(messages(typed(many), "accusations")) == 21
    assert messages(typed(many), "accusations")[-1] == "and 10 more"


def test_rounds_to_look_at_are_joined() -> None:
    found = [{"round": t, "kept": t < 4, "status": f"refused: only {t} usable"} for t in (1, 2, 3, 7)]
    assert statuses(typed(found)) == [
        "rounds 1–3: the old model was kept: refused: only 1 usable", "round 7: refused: only 7 usable"
    ]  # fmt: skip
