"""Runs in one sentence: how many clients lied, how accurate the models are, who was accused, and who wrongly."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from honestly.runs.record import COMPANY, RoundRecord
from honestly.show.run import RunView
from honestly.show.text import shorten

#: The most clients named in one sentence, and the most messages in a list.
MOST_NAMES, MOST_MESSAGES = 5, 20


def liars(run: RunView) -> set[int]:
    """The clients that attacked in any round."""
    return {k for r in run.records for k in r.attacked} if run.known else set()


def judges(run: RunView) -> bool:
    """Whether the rule accuses: it infers honesty, or has accused somebody."""
    return any(r.honesty is not None or r.accused for r in run.records)


def in_question(runs: Sequence[RunView]) -> int:
    """Which run the page is about: the last one that judges liars, or judges at all, or has liars; else the last."""
    wishes = (lambda r: bool(liars(r)) and judges(r), judges, lambda r: bool(liars(r)), lambda r: True)
    return next(i for wish in wishes for i in reversed(range(len(runs))) if wish(runs[i]))


def sentence(runs: Sequence[RunView]) -> str:
    """The verdict on all runs; the accusations are those of the run in question."""
    runs = [run for run in runs if run.records]
    if not runs:
        return "No round is finished yet."
    run = runs[in_question(runs)]
    bad = liars(run)
    chosen = [r for r in runs if bool(liars(r)) == bool(bad)]
    ends = _list([text for r in chosen if (text := _end(r, single=len(chosen) == 1))])
    ends = ends.replace(" ended at", "\0", 1).replace(" ended at", " at").replace("\0", " ended at")
    if not run.known:
        return _join(
            f"{_count(len(run.records), 'round')} with {_count(len(run.clients), 'client')}", _complaints(run), ends
        )
    who = f"{len(bad)} of {_count(len(run.clients), 'client')} lied" if bad else "Nobody lied"
    caught = [*([_caught(run, bad)] if bad else []), _wrongly(run, bad)] if judges(run) else []
    return _join(who, ends, _list([text for text in caught if text]), _exclusions(run))


def _join(*parts: str) -> str:
    whole = "; ".join(part for part in parts if part)
    return whole[:1].upper() + whole[1:] + "."


def _list(parts: Sequence[str]) -> str:
    return ", ".join(parts)


def _count(n: int, word: str) -> str:
    return f"{n} {word}" if n == 1 else f"{n} {word}s"


def percent(value: float) -> str:
    """
    >>> percent(0.969), percent(0.004)
    ('97 %', '0 %')
    """
    return f"{100 * value:.0f} %"


def _end(run: RunView, *, single: bool) -> str:
    accuracy = [r.accuracy for r in run.records if r.accuracy is not None]
    asr = [r.asr for r in run.records if r.asr is not None]
    if not accuracy:
        return ""
    name = "the accuracy" if single else shorten(run.title, 60)
    success = f" (attack success {percent(asr[-1])})" if asr else ""
    return f"{name} ended at {percent(accuracy[-1])}{success}"


def _caught(run: RunView, bad: set[int]) -> str:
    """From which round on every attacker was accused or excluded; else how many were, on average."""
    attacked = [r for r in run.records if r.attacked]
    caught = [len(set(r.attacked) & _against(r)) for r in attacked]
    whole = [n == len(r.attacked) for n, r in zip(caught, attacked, strict=True)]
    if not any(caught):
        return "no liar was caught" + _weight(attacked)
    if not whole[-1]:
        mean, of = sum(caught) / len(caught), sum(len(r.attacked) for r in attacked) / len(attacked)
        return f"{_digit(mean)} of {_digit(of)} liars caught per round on average" + _weight(attacked)
    first = len(whole) - next((i for i, ok in enumerate(reversed(whole)) if not ok), len(whole))
    everybody = f"all {len(bad)}" if len(bad) > 1 else "the liar"
    return f"{everybody} caught from round {attacked[first].round}"


def _weight(attacked: Sequence[RoundRecord]) -> str:
    """The largest share of the weight that the liars had in a round: a client that is not accused may weigh little."""
    shares = [
        sum(w for k, w in enumerate(r.weights) if w is not None and k in set(r.attacked))
        / max(sum(w for w in r.weights if w is not None), 1e-300)
        for r in attacked
        if r.weights is not None
    ]
    return f" (all of them together had at most {percent(max(shares))} of the weight)" if shares else ""


def _digit(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _against(record: RoundRecord) -> set[int]:
    return {*(record.accused or ()), *record.excluded}


def _wrongly(run: RunView, bad: set[int]) -> str:
    """Accusations of clients that behaved; a liar that pauses for a round behaves in it."""
    wrong = [set(r.accused or ()) - set(r.attacked) for r in run.records]
    rounds = sum(bool(accused) for accused in wrong)
    everybody: set[int] = set().union(*wrong)
    honest = everybody - bad
    if not rounds:
        return "no honest client accused" if bad else "no client accused"
    when = f"in {rounds} of {_count(len(run.records), 'round')}"
    if not honest:
        return f"no honest client accused, {_count(len(everybody), 'liar')} accused while behaving {when}"
    return f"{'one honest client' if len(honest) == 1 else f'{len(honest)} honest clients'} accused {when}"


def _exclusions(run: RunView) -> str:
    clients = {k for r in run.records for k in r.excluded} - liars(run)
    return f"{_count(len(clients), 'honest client')} excluded" if clients else ""


def _complaints(run: RunView) -> str:
    """Of a federation: who was accused or excluded, and in how many rounds."""
    T = len(run.records)
    parts: list[str] = []
    accused = Counter(k for r in run.records for k in r.accused or ())
    excluded = Counter(k for r in run.records for k in r.excluded)
    for counts, verb in ((accused, "accused"), (excluded, "excluded")):
        named = [f"{shorten(run.clients[k], 30)} {_often(n, T)}" for k, n in counts.most_common(MOST_NAMES)]
        if named:
            more = f" and {len(counts) - MOST_NAMES} more" if len(counts) > MOST_NAMES else ""
            parts.append(f"{verb}: {_list(named)}{more}")
    unchanged = sum(r.kept for r in run.records)
    parts += [f"the old model was kept in {_count(unchanged, 'round')}"] if unchanged else []
    return "; ".join(parts) if parts else "nobody was accused or excluded"


def _often(n: int, rounds: int) -> str:
    return "in every round" if n == rounds > 1 else f"in {n} of {_count(rounds, 'round')}"


# -- messages -------------------------------------------------------------------------------------------------------


def messages(records: Sequence[RoundRecord], of: str = "reasons") -> list[str]:
    """Why clients were excluded, or accused, each message once: "8 clients, 15 rounds: square overflows"."""
    clients: dict[str, set[str]] = {}
    rounds: dict[str, set[int]] = {}
    texts: dict[str, str] = {}
    for record in records:
        sentences: Mapping[str, str] = getattr(record, of)
        for name, reason in sentences.items():
            # accusations that differ in the company alone are counted as one
            key = _numberless(COMPANY.sub("", str(reason)[:1000]))
            texts.setdefault(key, str(reason))
            clients.setdefault(key, set()).add(str(name))
            rounds.setdefault(key, set()).add(record.round)
    order = sorted(texts, key=lambda key: (-len(clients[key]) * len(rounds[key]), key))
    listed = [
        f"{_count(len(clients[key]), 'client')}, {_count(len(rounds[key]), 'round')}: {shorten(texts[key], 300)}"
        for key in order[:MOST_MESSAGES]
    ]
    return listed + ([f"and {len(order) - MOST_MESSAGES} more"] if len(order) > MOST_MESSAGES else [])


def statuses(records: Sequence[RoundRecord]) -> list[str]:
    """Rounds that need attention, each reason once, with the rounds that it applies to."""
    rounds: dict[str, list[int]] = {}
    texts: dict[str, str] = {}
    for r in records:
        if r.kept or r.attention or r.refused:
            text = f"the old model was kept: {r.status}" if r.kept else r.status or "look at this round"
            rounds.setdefault(_numberless(text), []).append(r.round)
            texts.setdefault(_numberless(text), text)
    return [f"{_spans(numbers)}: {shorten(texts[key], 300)}" for key, numbers in rounds.items()]


def _numberless(text: str) -> str:
    """The message without its numbers: messages that differ in nothing else are counted as one."""
    return re.sub(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?", "N", text)


def _spans(numbers: Sequence[int]) -> str:
    """
    >>> _spans([1, 2, 3, 7])
    'rounds 1–3, 7'
    """
    parts: list[list[int]] = []
    for n in sorted(set(numbers)):
        if parts and parts[-1][-1] == n - 1:
            parts[-1] = [parts[-1][0], n]
        else:
            parts.append([n])
    words = [f"{a[0]}" if len(a) == 1 or a[0] == a[-1] else f"{a[0]}–{a[-1]}" for a in parts]
    more = f" and {len(words) - 10} more" if len(words) > 10 else ""
    return ("round " if len(numbers) == 1 else "rounds ") + ", ".join(words[:10]) + more
