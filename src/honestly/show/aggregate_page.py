"""The report of `honestly aggregate`: a table, JSON, and a page of HTML that needs nothing else.

Names of clients and tensors come from strangers: they are escaped wherever they are shown.
"""

from __future__ import annotations

import html
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from honestly._version import __version__
from honestly.files import write_atomically
from honestly.printable import printable as shown

if TYPE_CHECKING:
    from honestly.result import Aggregate

SCHEMA = "honestly-aggregate/1"
#: Layers named for each client in the report, and columns of the picture.
MOST_LAYERS, MOST_COLUMNS = 5, 60


def check_target(file: str) -> None:
    """Raise ValueError unless a report can be written there."""
    if not file.endswith((".html", ".htm", ".json")):
        raise ValueError(f"--report is {file!r}, expected a file that ends in .html or .json")
    folder = Path(file).resolve().parent
    if not folder.is_dir():
        raise ValueError(f"--report is {file!r}, but its folder does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"--report is {file!r}, but its folder cannot be written")


def as_json(
    found: Aggregate,
    *,
    rule: str,
    pre: Sequence[str],
    out: str | None,
    paths: Mapping[Any, str],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """All that is known, as plain values; NaN and what was not measured are null. No dates: equal runs, equal bytes."""
    distance = found.diagnostics.get("distance")
    layers: Mapping[str, Any] = found.diagnostics.get("layer_distances", {})
    excess = _excess(layers)
    clients: list[dict[str, Any]] = []
    for k, name in enumerate(found.clients):
        mine: dict[str, Any] = {
            "id": shown(name),
            "file": shown(paths[name]),
            "honesty": None if found.honesty is None else _plain(found.honesty[k]),
            "weight": None if found.weights is None else _plain(found.weights[k]),
            "distance": None if distance is None else _plain(distance[k]),
            "verdict": str(found.verdicts[k]),
            "why": shown(found.explanations[k]),
            "excluded": name in found.reasons,
            "reason": shown(found.reasons[name]) if name in found.reasons else None,
        }
        for share in ("claimed_shares", "used_shares"):
            if share in found.diagnostics:
                mine[share.removesuffix("s")] = _plain(found.diagnostics[share][k])
        if layers:
            mine["layers"] = _most(excess[:, k], list(layers))
        clients.append(mine)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "honestly": __version__,
        "rule": rule,
        "pre": list(pre),
        "out": None if out is None else shown(out),
        "status": str(found.status),
        "ok": found.status.ok,
        "steps": found.steps,
        "malicious": None if found.malicious is None else _plain(found.malicious),
        "accused": [shown(name) for name in found.accused],
        "excluded": [shown(name) for name in found.excluded],
        "warnings": [shown(note) for note in notes],
        "clients": clients,
    }
    for name in ("lora", "reference_weight"):
        if name in found.diagnostics:
            report[name] = found.diagnostics[name]
    if layers:
        report["layers"] = {shown(name): [_plain(value) for value in values] for name, values in layers.items()}
    return report


def _excess(layers: Mapping[str, Any]) -> np.ndarray:
    """(leaves, K): how much more of a client's squared distance a layer holds than that of the middle client."""
    if not layers:
        return np.zeros((0, 0))
    table = np.stack([np.asarray(values, dtype=np.float64) for values in layers.values()])
    usable = np.isfinite(table).all(axis=0)
    middle = np.median(table[:, usable], axis=1, keepdims=True) if usable.any() else np.zeros((len(table), 1))
    return np.maximum(table - middle, 0)


def _most(excess: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """The layers in which a client differs most from the others, with their share of all the difference."""
    total = float(excess.sum())
    if not math.isfinite(total) or total <= 0:
        return []
    order = np.argsort(-excess, kind="stable")[:MOST_LAYERS]
    return [{"layer": shown(names[i]), "share": _plain(excess[i] / total)} for i in order if excess[i] > 0]


def _plain(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def show(report: Mapping[str, Any]) -> None:
    """Print the table."""
    from honestly.show.terminal import Table

    inferred = any(client["honesty"] is not None for client in report["clients"])
    weighted = any(client["weight"] is not None for client in report["clients"])
    measured = any(client.get("layers") for client in report["clients"])
    excluded = bool(report["excluded"])
    sized = any("used_share" in client for client in report["clients"])
    titles = {"client": True, "honesty": inferred, "claimed": sized, "used": sized, "weight": weighted}
    titles |= {"distance": True, "differs most in": measured}
    columns = [title for title, wanted in {**titles, "": excluded}.items() if wanted]
    rows: list[list[str]] = []
    styles: list[str] = []
    known = [client["distance"] for client in report["clients"] if client["distance"] is not None]
    usual = float(np.median(known)) if known else 0.0
    for client in report["clients"]:
        style = "red" if client["excluded"] else "yellow" if client["verdict"] == "accused" else ""
        cells = [client["id"]]
        cells += [_digits(client["honesty"], 3)] if inferred else []
        cells += [_digits(client[key], 4) for key in ("claimed_share", "used_share")] if sized else []
        cells += [_digits(client["weight"], 4)] if weighted else []
        cells += ["-" if client["distance"] is None else f"{client['distance']:.4g}"]
        cells += [_first_layer(client, usual)] if measured else []
        cells += [f"excluded: {client['reason']}" if client["excluded"] else ""] if excluded else []
        rows.append(cells)
        styles.append(style)
    Table(columns, rows, right=("honesty", "claimed", "used", "weight", "distance"), styles=styles).show()
    used = len(report["clients"]) - len(report["excluded"])
    print(f"{shown(report['rule'])}: {report['status']}; {used} of {len(report['clients'])} clients used")
    if report["malicious"] is not None:
        print(f"clients accused of lying: {report['malicious']:.0f}")
    for key, value in (report.get("lora") or {}).items():
        print(f"LoRA {key.replace('_', ' ')}: {value}")
    if report["out"] is not None:
        print(f"written to {report['out']}")


def _first_layer(client: Mapping[str, Any], usual: float) -> str:
    """Where a client differs most, if it is farther away than most are: among honest ones the layer means nothing."""
    layers = client.get("layers") or []
    if client["distance"] is None or client["distance"] < 1.5 * usual:
        return ""
    return f"{layers[0]['layer']} ({100 * layers[0]['share']:.0f} %)" if layers else ""


def _digits(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#1c2430;background:#fff}
table{border-collapse:collapse;width:100%;margin:1rem 0}
th,td{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #dde3ea;vertical-align:top;overflow-wrap:anywhere}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tr.x td{color:#a3132b}tr.s td{color:#8a5a00}footer,.q{color:#5b6776}
.map td,.map th{padding:0;border:1px solid #fff;height:1.3rem;font-size:12px}
.map th{text-align:left;font-weight:400;padding-right:.5rem;width:12rem}
@media(prefers-color-scheme:dark){body{color:#e4e9f0;background:#12161c}th,td{border-color:#2b333e}
.map td,.map th{border-color:#12161c}tr.x td{color:#ff8a9a}tr.s td{color:#ffc766}footer,.q{color:#9aa7b6}}
"""


def as_html(report: Mapping[str, Any]) -> str:
    """One page without scripts, fonts or anything from elsewhere."""
    e = html.escape
    rows: list[str] = []
    for client in report["clients"]:
        kind = "x" if client["excluded"] else "s" if client["verdict"] == "accused" else ""
        layers = ", ".join(f"{e(la['layer'])} ({100 * la['share']:.0f}&nbsp;%)" for la in client.get("layers") or [])
        note = f"excluded: {e(client['reason'])}" if client["excluded"] else layers
        distance = "-" if client["distance"] is None else f"{client['distance']:.4g}"
        rows.append(
            f'<tr class="{kind}"><td>{e(client["id"])}</td><td class="n">{_digits(client["honesty"], 3)}</td>'
            f'<td class="n">{_digits(client["weight"], 4)}</td><td class="n">{distance}</td><td>{note}</td></tr>'
        )
    malicious = "" if report["malicious"] is None else f"; {report['malicious']:.0f} of them accused of lying"
    warnings = "".join(f"<p><strong>Warning:</strong> {e(note)}</p>" for note in report["warnings"])
    steps = " after ".join(e(step) for step in [report["rule"], *reversed(report["pre"])])
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>honestly aggregate</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{STYLE}</style></head><body><h1>Whom the average believed</h1>"
        f"<p>{steps}: {e(report['status'])}; {len(report['clients']) - len(report['excluded'])} of "
        f"{len(report['clients'])} clients used{malicious}.</p>{warnings}"
        '<table><tr><th>client</th><th class="n">honesty</th><th class="n">weight</th><th class="n">distance</th>'
        f"<th>differs most in, or why it was excluded</th></tr>{''.join(rows)}</table>{_map(report)}"
        f"<footer>honestly {e(report['honestly'])}</footer></body></html>\n"
    )


def _map(report: Mapping[str, Any]) -> str:
    """Clients by layers: how many times the middle client's squared distance, as a shade."""
    layers: Mapping[str, Sequence[float | None]] = report.get("layers") or {}
    if not layers:
        return ""
    table = np.array([[np.nan if v is None else v for v in values] for values in layers.values()], dtype=np.float64)
    names = list(layers)
    if len(names) > MOST_COLUMNS:
        keep = np.sort(
            np.argsort(-_excess(layers_as_arrays(layers)).max(axis=1, initial=0), kind="stable")[:MOST_COLUMNS]
        )
        table, names = table[keep], [names[i] for i in keep]
    usable = [bool(np.isfinite(column).all()) for column in table.T]
    middle = np.median(table[:, usable], axis=1) if any(usable) else np.ones(len(table))
    rows: list[str] = []
    for k, client in enumerate(report["clients"]):
        if not usable[k]:
            continue
        cells: list[str] = []
        for i, name in enumerate(names):
            ratio = table[i, k] / middle[i] if middle[i] > 0 else float(table[i, k] > 0) * 1e6 or 1.0
            shade = min(1.0, max(0.0, math.log10(max(ratio, 1.0)) / 3))
            title = html.escape(f"{client['id']}, {name}: {ratio:.3g} times the middle client", quote=True)
            cells.append(f'<td style="background:rgba(196,32,64,{shade:.2f})" title="{title}"></td>')
        rows.append(f"<tr><th>{html.escape(client['id'])}</th>{''.join(cells)}</tr>")
    shown_of = (
        f"the {len(names)} of {len(layers)} tensors that differ most" if len(names) < len(layers) else "all tensors"
    )
    return (
        "<h2>Which layers give a client away</h2>"
        f'<p class="q">Columns: {shown_of}, in the order of the model. The redder, the farther the client is from '
        "the average in that tensor, as a multiple of the middle client's squared distance (full red: 1000 times).</p>"
        f'<table class="map">{"".join(rows)}</table>'
    )


def layers_as_arrays(layers: Mapping[str, Sequence[float | None]]) -> dict[str, np.ndarray]:
    """The report's layers as numbers, NaN where nothing was measured."""
    return {name: np.array([np.nan if v is None else v for v in values]) for name, values in layers.items()}


def write(file: str, text: str) -> None:
    """Write a report so that it appears at once."""
    write_atomically(Path(file), text)
