"""A run, or several side by side, as one HTML page that needs nothing else: no scripts, no fonts, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from honestly.runs.record import ACCURACY, ASR, RoundRecord
from honestly.show import svg
from honestly.show.figure import VERDICTS, attack_grid, belief_grid, curve, verdict_grid
from honestly.show.text import for_html
from honestly.sim.summary import summary

if TYPE_CHECKING:
    from honestly.sim.experiment import Experiment

STYLE = (
    """
:root{color-scheme:light dark;--line:#8884;--quiet:#57606a}
@media(prefers-color-scheme:dark){:root{--quiet:#9aa4b2}}
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;overflow-wrap:anywhere}
table{border-collapse:collapse;margin:.6rem 0;font-variant-numeric:tabular-nums;overflow-wrap:normal}
th,td{padding:.25rem .6rem;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600}th:first-child,td:first-child,.t td,.t th{text-align:left}
h2{margin-top:2.2rem}h3{margin:1.6rem 0 .4rem}code{word-break:break-all}
.quiet{color:var(--quiet)}details{margin:.8rem 0}summary{cursor:pointer}
.box{display:inline-block;width:.8em;height:.8em;margin:0 .35em 0 0;border-radius:2px}
"""
    + svg.STYLE
)
VERDICT_COLOURS = ("#8883", "#2f9e58", "#e5484d", "#d97706", "#6b7280")
MOST_ROWS = 100


@dataclass(frozen=True)
class Run:
    """A run and what to call it.

    Attributes:
        title: its name on the page.
        records: one for each round.
        clients: the clients' names.
        known: True if it is known who attacked; nobody knows in a real federation.
        details: what else a person may want to look up, by name.
    """

    title: str
    records: Sequence[RoundRecord]
    clients: Sequence[str]
    known: bool = True
    details: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, title: str, experiment: Experiment, records: Sequence[RoundRecord]) -> Run:
        """A run of the simulator."""
        names = [str(k) for k in range(experiment.clients)]
        return cls(title, records, names, True, {"id": experiment.id, "experiment": experiment.canonical})


def page(heading: str, runs: Sequence[Run], *, lead: str = "", back: str = "") -> str:
    """The whole page; `back` is the address of the page that it belongs to."""
    return document(heading, (f"<p>{for_html(lead)}</p>" if lead else "") + body(runs), back=back)


def body(runs: Sequence[Run]) -> str:
    """The runs side by side: numbers and curves together, then each run's maps and accusations."""
    several = len(runs) > 1
    parts = [_table(runs)]
    for key, title in ((ACCURACY, "Test accuracy"), (ASR, "Attack success rate")):
        if any(getattr(r, key) is not None for run in runs for r in run.records):
            parts += [f"<h2>{title}</h2>", svg.chart(over_rounds(title, [(r.title, r.records) for r in runs], key))]
    for run in runs:
        heading = run.title if several else "Whom the rule believed"
        parts.append(f"<h2>{for_html(heading)}</h2>" + maps(run) + _accusations(run) + _noteworthy(run))
        parts += [
            f"<details><summary>{for_html(name)}</summary><p><code>{for_html(text)}</code></p></details>"
            for name, text in run.details.items()
        ]
    return "\n".join(parts)


def document(heading: str, body: str, *, style: str = "", back: str = "") -> str:
    """A page of HTML around its body."""
    link = f"<p><a href='{for_html(back)}'>the whole study</a></p>" if back else ""
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>{for_html(heading)}</title><style>{STYLE}{style}</style></head><body>\n"
        f"{link}<h1>{for_html(heading)}</h1>\n{body}\n</body></html>\n"
    )


def over_rounds(title: str, runs: Sequence[tuple[str, Sequence[RoundRecord]]], key: str) -> svg.Chart:
    """A number between 0 and 1 over the rounds, of one run or several."""
    lines = [svg.Line(name, *curve(records, key)) for name, records in runs]
    last = max((t for line in lines for t in line.xs), default=1)
    return svg.Chart(title, "round", title, lines, xlim=(1, max(last, 2)))


def _number(value: Any, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def _table(runs: Sequence[Run]) -> str:
    columns = (
        ("accuracy, last", "accuracy_last", 3), ("accuracy, mean of last 20", "accuracy_mean_last_20", 3),
        ("ASR, last", "asr_last", 3), ("ASR, mean of last 20", "asr_mean_last_20", 3),
        ("falsely accused per round", "false_accusations_per_round", 2), ("missed per round", "misses_per_round", 2),
    )  # fmt: skip
    found = [summary(run.records) for run in runs]
    columns = [c for c in columns if any(s[c[1]] is not None for s in found)]
    if not columns:
        return ""
    head = "".join(f"<th>{name}</th>" for name, _, _ in columns)
    rows = [
        f"<tr><td>{for_html(run.title)}</td>" + "".join(f"<td>{_number(s[key], n)}</td>" for _, key, n in columns)
        for run, s in zip(runs, found, strict=True)
    ]
    body = "".join(f"{row}</tr>" for row in rows)
    table = f"<table><thead><tr><th>run</th>{head}</tr></thead><tbody>{body}</tbody></table>"
    return svg.scroll(table, "final numbers")


def maps(run: Run) -> str:
    """Who attacked, and whom the rule believed."""
    K, rounds = len(run.clients), [r.round for r in run.records]
    parts: list[str] = []
    if run.known:
        drawn = svg.heat(
            attack_grid(run.records, K),
            svg.red,
            label="who attacked",
            clients=run.clients,
            rounds=rounds,
            word=_attacked,
        )
        parts += ["<p>Who attacked (dark red), by client and round</p>", drawn]
    belief = belief_grid(run.records, K)
    if belief is not None:
        grid, label = belief
        drawn = svg.heat(grid, svg.red_to_green, label=label, clients=run.clients, rounds=rounds)
        parts += [f"<p>{label[0].upper() + label[1:]}: red 0, green 1</p>", drawn]
    return "".join(parts)


def _attacked(value: float) -> str:
    return "attacked" if value > 0.5 else "behaved"


def _accusations(run: Run) -> str:
    """Whom the rule accused, rightly or not, round by round and client by client."""
    grid = verdict_grid(run.records, len(run.clients))
    if grid is None:
        return "<p class='quiet'>This rule accuses nobody: it does not say whom it believes.</p>"
    words = VERDICTS if run.known else ("believed", "", "accused", "", "refused")
    keys = "".join(
        f"<li><span class='box' style='background:{VERDICT_COLOURS[v]}'></span>{word}</li>"
        for v, word in enumerate(words)
        if word and (grid == v).any()
    )
    drawn = svg.heat(
        grid, lambda v: VERDICT_COLOURS[int(v)], label="accusations", clients=run.clients,
        rounds=[r.round for r in run.records], word=lambda v: words[int(v)] or "believed",
    )  # fmt: skip
    return f"<h3>Accusations</h3>{drawn}<ul class='keys'>{keys}</ul>{_by_client(run, grid, words)}"


def _by_client(run: Run, grid: svg.Grid, words: Sequence[str]) -> str:
    """One row for each client that anything was held against."""
    counts = np.stack([(grid == v).sum(axis=1) for v in range(len(words))], axis=1)
    held = [int(k) for k in np.flatnonzero(counts[:, 1:].any(axis=1))]
    if not held:
        return "<p>Nobody was accused, refused or missed.</p>"
    held.sort(key=lambda k: -int(counts[k, [1, 2, 4]].sum()))
    shown = [v for v, word in enumerate(words) if word]
    why = _reasons(run)
    rows: list[str] = []
    for k in held[:MOST_ROWS]:
        cells = "".join(f"<td>{counts[k, v]}</td>" for v in shown)
        reason = f"<td style='text-align:left'>{for_html(why.get(k, ''))}</td>" if why else ""
        rows.append(f"<tr><td>{for_html(run.clients[k])}</td>{cells}{reason}</tr>")
    head = "".join(f"<th>{words[v]}</th>" for v in shown) + ("<th style='text-align:left'>why</th>" if why else "")
    more = f"<p>{len(held) - MOST_ROWS} more clients are not shown.</p>" if len(held) > MOST_ROWS else ""
    table = f"<table><thead><tr><th>client</th>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f"<p>Rounds, client by client:</p>{svg.scroll(table, 'accusations by client')}{more}"


def _reasons(run: Run) -> dict[int, str]:
    """Why a client was refused, in the last round in which it was."""
    index = {name: k for k, name in enumerate(run.clients)}
    found: dict[int, str] = {}
    for record in run.records:
        for name, reason in record.reasons.items():
            if str(name) in index:
                found[index[str(name)]] = str(reason)
    return found


def _noteworthy(run: Run) -> str:
    """The rounds that a person should look at: the model was kept, or the rule had doubts."""
    found = [r for r in run.records if r.kept or r.attention or r.refused]
    if not found:
        return ""
    rows = "".join(
        f"<tr><td>{r.round}</td><td>{'old model kept' if r.kept else ''}</td><td>{for_html(r.status)}</td></tr>"
        for r in found[:MOST_ROWS]
    )
    more = f"<p>{len(found) - MOST_ROWS} more are not shown.</p>" if len(found) > MOST_ROWS else ""
    table = (
        f"<table class='t'><thead><tr><th>round</th><th></th><th>status</th></tr></thead><tbody>{rows}</tbody></table>"
    )
    return f"<h3>Rounds to look at</h3>{svg.scroll(table, 'rounds to look at')}{more}"
