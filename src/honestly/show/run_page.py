"""A run, or several side by side, as one self-contained HTML page: no scripts, no fonts, no network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from honestly.runs.record import ACCURACY, ASR
from honestly.show import downloads, svg, verdict
from honestly.show.chart import DOT, RING, Chart
from honestly.show.downloads import Download
from honestly.show.html import part, render
from honestly.show.maps import belief_of, key_words, over_rounds
from honestly.show.run import RunView
from honestly.show.tables import Cell, Table
from honestly.sim.summary import LAST, summary

__all__ = ["RunView", "body", "charts", "files", "page"]

MOST_ROWS = 100
MEASURES = ((ACCURACY, "Test accuracy"), (ASR, "Attack success rate"))
#: Column, key of the summary, digits.
NUMBERS = (
    ("accuracy, last round", "accuracy_last", 3), (f"accuracy, mean of the last {LAST}", "accuracy_mean_last_20", 3),
    ("ASR, last round", "asr_last", 3), (f"ASR, mean of the last {LAST}", "asr_mean_last_20", 3),
    ("falsely accused per round", "false_accusations_per_round", 2), ("missed per round", "misses_per_round", 2),
)  # fmt: skip


def page(heading: str, runs: Sequence[RunView], *, lead: str = "", back: str = "", picture: bytes = b"") -> str:
    """The whole page; `back` is the address of the page that it belongs to, `picture` a PNG to save."""
    saved = [*files(runs), *downloads.inside("figure.png", picture)]
    return render(
        "run.html", heading=heading, verdict=verdict.sentence(runs), lead=lead, back=back, body=body(runs),
        downloads=saved,
    )  # fmt: skip


def body(runs: Sequence[RunView]) -> Markup:
    """Curves of all runs, truth beside belief for the one in question, and everything else folded."""
    started = [run for run in runs if run.records]
    if not started:
        return Markup("")
    main = verdict.in_question(started)
    others = [run for i, run in enumerate(started) if i != main]
    return part("runs", charts=charts(started), main=_story(started[main]), others=[_story(run) for run in others],
                numbers=numbers(started), several=len(started) > 1)  # fmt: skip


def charts(runs: Sequence[RunView]) -> list[Chart]:
    """Accuracy and attack success of all runs; the run in question comes first."""
    main = verdict.in_question(runs)
    rest = [run for i, run in enumerate(runs) if i != main]
    ordered = [
        runs[main],
        *sorted(rest, key=lambda run: not verdict.liars(run)),
    ]  # the second curve is orange: a run under attack
    curves = [over_rounds(title, [(r.title, r.records) for r in ordered], key) for key, title in MEASURES]
    return [one for one in curves if one.lines]


def _story(run: RunView) -> dict[str, Any]:
    """What the template shows of one run."""
    judged = any(r.accused is not None or r.excluded for r in run.records)
    maps, belief = run.maps(), belief_of(run.records)
    return {
        "title": run.title, "maps": maps, "belief": belief, "known": run.known,
        "accusations": accusations(run) if judged else None, "messages": verdict.messages(run.records),
        "why": verdict.messages(run.records, "accusations"),
        "statuses": verdict.statuses(run.records), "details": run.details,
        "accused": any(one.has_marks(DOT) for one in maps), "excluded": any(one.has_marks(RING) for one in maps),
        "key": key_words(maps, belief), "lied": bool(verdict.liars(run)),
    }  # fmt: skip


def numbers(runs: Sequence[RunView]) -> Table | None:
    """The final numbers, side by side; a mean of the last 20 rounds only where there are 20."""
    summaries = [{**summary(run.records)} for run in runs]
    for one in summaries:
        if (one["rounds"] or 0) < LAST:
            one |= {"accuracy_mean_last_20": None, "asr_mean_last_20": None}
    columns = [c for c in NUMBERS if any(s[c[1]] is not None for s in summaries)]
    if not columns:
        return None
    rows: list[list[Cell]] = [
        [run.title, *("–" if s[key] is None else f"{s[key]:.{n}f}" for _, key, n in columns)]
        for run, s in zip(runs, summaries, strict=True)
    ]
    return Table("numbers", "", "", ["run", *(name for name, _, _ in columns)], rows)


def accusations(run: RunView) -> Table | None:
    """One row for each client that attacked, was accused or was excluded, the most accused first; None if none did."""
    counts = {key: Counter[int]() for key in ("attacked", "accused", "wrongly", "missed", "excluded")}
    judged = any(r.accused is not None for r in run.records)
    for r in run.records:
        attacked, excluded = set(r.attacked), set(r.excluded)
        accused = set(r.accused or ())
        counts["attacked"].update(attacked)
        counts["accused"].update(accused)
        counts["wrongly"].update(accused - attacked)
        counts["missed"].update(attacked - accused - excluded if r.accused is not None else ())
        counts["excluded"].update(excluded)
    clients = sorted(set().union(*counts.values()), key=lambda k: (-counts["accused"][k] - counts["excluded"][k], k))
    if not clients:
        return None
    columns = [
        key for key in counts
        if any(counts[key].values()) and (run.known or key in ("accused", "excluded")) and (judged or key != "missed")
    ]  # fmt: skip
    rows: list[list[Cell]] = [[run.clients[k], *(counts[key][k] for key in columns)] for k in clients[:MOST_ROWS]]
    note = f"{len(clients) - MOST_ROWS} more clients are not shown." if len(clients) > MOST_ROWS else ""
    return Table("accusations", "", f"The number of rounds in which each happened. {note}".strip(),
                 ["client", *columns], rows)  # fmt: skip


def files(runs: Sequence[RunView]) -> list[Download]:
    """Rounds as CSV and JSON, the drawings as SVG."""
    started = [run for run in runs if run.records]
    if not started:
        return []
    drawn = [*charts(started), *started[verdict.in_question(started)].maps()]
    rows = [
        [
            run.title,
            r.round,
            r.accuracy,
            r.asr,
            *(_client_names(run, clients) for clients in (r.attacked, r.accused, r.excluded)),
        ]
        for run in started
        for r in run.records
    ]
    columns = ["run", "round", "accuracy", "asr", "attacked", "accused", "excluded"]
    values = [
        {"run": run.title, "clients": list(run.clients),
         "rounds": [{k: v for k, v in r.as_json().items() if k not in ("per_class", "clients")} for r in run.records]}
        for run in started
    ]  # fmt: skip
    return [
        *downloads.inside("rounds.csv", downloads.as_csv(columns, rows)),
        *downloads.inside("rounds.json", downloads.as_json(values)),
        *downloads.inside("figure.svg", svg.standalone(drawn)),
    ]


def _client_names(run: RunView, clients: Sequence[int] | None) -> str:
    return " ".join(run.clients[k] for k in clients or ())
