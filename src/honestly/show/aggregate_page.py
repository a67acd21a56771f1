"""The report of `honestly aggregate`: a table, JSON, and a self-contained HTML page.

Names of clients and tensors are untrusted: they are escaped wherever they are shown.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from honestly._version import __version__
from honestly.files import write_atomically
from honestly.printable import printable as shown
from honestly.show.text import shorten

if TYPE_CHECKING:
    from honestly.result import Aggregate

SCHEMA = "honestly-aggregate/1"
#: The most layers per client in the report, clients in its first table, and names in its sentence.
MOST_LAYERS, MOST_CLIENTS, MOST_NAMES = 5, 30, 5
#: Verdicts that need attention.
NOTICED = ("accused", "unusual", "excluded")
COLUMNS = ("verdict", "honesty", "weight", "distance", "why")


def check_target(file: str) -> None:
    """Raise ValueError unless a report can be written there."""
    if file.endswith((".html", ".htm")) and find_spec("jinja2") is None:
        raise ValueError(f"--report {file}: a page needs jinja2 (pip install 'honestly[cli]'); a .json report does not")
    if not file.endswith((".html", ".htm", ".json")):
        raise ValueError(f"--report is {file!r}, expected a file that ends in .html or .json")
    folder = Path(file).resolve().parent
    if not folder.is_dir():
        raise ValueError(f"--report is {file!r}, but its folder does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"--report is {file!r}, but its folder cannot be written")


def as_json(
    result: Aggregate,
    *,
    rule: str,
    pre: Sequence[str],
    out: str | None,
    paths: Mapping[Any, str],
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The report as plain values. It has no dates, so the same run gives the same bytes. NaN becomes null."""
    distance = result.diagnostics.get("distance")
    layers: Mapping[str, Any] = result.diagnostics.get("layer_distances", {})
    excess = _excess(layers)
    clients: list[dict[str, Any]] = []
    for k, name in enumerate(result.clients):
        mine: dict[str, Any] = {
            "id": shown(name),
            "file": shown(paths[name]),
            "honesty": None if result.honesty is None else _plain(result.honesty[k]),
            "weight": None if result.weights is None else _plain(result.weights[k]),
            "distance": None if distance is None else _plain(distance[k]),
            "verdict": str(result.verdicts[k]),
            "why": shown(result.explanations[k]),
            "excluded": name in result.reasons,
            "reason": shown(result.reasons[name]) if name in result.reasons else None,
        }
        for share in ("claimed_shares", "used_shares"):
            if share in result.diagnostics:
                mine[share.removesuffix("s")] = _plain(result.diagnostics[share][k])
        if layers:
            mine["layers"] = _most_different(excess[:, k], list(layers))
        clients.append(mine)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "honestly": __version__,
        "rule": rule,
        "pre": list(pre),
        "out": None if out is None else shown(out),
        "status": str(result.status),
        "ok": result.status.ok,
        "steps": result.steps,
        "malicious": None if result.malicious is None else _plain(result.malicious),
        "accused": [shown(name) for name in result.accused],
        "excluded": [shown(name) for name in result.excluded],
        "warnings": [shown(note) for note in notes],
        "clients": clients,
    }
    for name in ("lora", "reference_weight"):
        if name in result.diagnostics:
            report[name] = result.diagnostics[name]
    if layers:
        report["layers"] = {shown(name): [_plain(value) for value in values] for name, values in layers.items()}
    by_layer: Any = result.diagnostics.get("layers")
    if isinstance(by_layer, np.ndarray) and len(by_layer) == len(result.clients):
        names = result.diagnostics["layer_names"]
        report["evidence"] = {
            shown(name): [_plain(v) for v in column] for name, column in zip(names, by_layer.T, strict=True)
        }
    return report


def _excess(layers: Mapping[str, Any]) -> np.ndarray:
    """(leaves, K): by how much a client's squared distance in a layer exceeds that of the median client."""
    if not layers:
        return np.zeros((0, 0))
    table = np.stack([np.asarray(values, dtype=np.float64) for values in layers.values()])
    usable = np.isfinite(table).all(axis=0)
    middle = np.median(table[:, usable], axis=1, keepdims=True) if usable.any() else np.zeros((len(table), 1))
    return np.maximum(table - middle, 0)


def _most_different(excess: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    """The layers in which a client differs most from the others, with their share of the whole difference."""
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
    from honestly.show.terminal import TerminalTable

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
    TerminalTable(columns, rows, right=("honesty", "claimed", "used", "weight", "distance"), styles=styles).show()
    used = len(report["clients"]) - len(report["excluded"])
    print(f"{shown(report['rule'])}: {report['status']}; {used} of {len(report['clients'])} clients were usable")
    if report["malicious"] is not None:
        print(f"clients accused of lying: {report['malicious']:.0f}")
    for key, value in (report.get("lora") or {}).items():
        print(f"LoRA {key.replace('_', ' ')}: {value}")
    if report["out"] is not None:
        print(f"written to {report['out']}")


def _first_layer(client: Mapping[str, Any], usual: float) -> str:
    """The layer in which a client differs most, if it is far away; for other clients the layer means nothing."""
    layers = client.get("layers") or []
    if client["distance"] is None or client["distance"] < 1.5 * usual:
        return ""
    return f"{layers[0]['layer']} ({100 * layers[0]['share']:.0f} %)" if layers else ""


def _digits(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def as_html(report: Mapping[str, Any]) -> str:
    """A self-contained page without scripts."""
    from honestly.runs.record import RoundRecord
    from honestly.show import downloads, figure, svg
    from honestly.show.html import render
    from honestly.show.layer_map import DOT_MEANS, KEY, layer_map
    from honestly.show.verdict import messages

    drawn = layer_map(report)
    clients = report["clients"]
    reasons = messages([RoundRecord(round=1, reasons={c["id"]: c["reason"] for c in clients if c["excluded"]})])
    rows = [[c[key] for key in ("id", "verdict", "honesty", "weight", "distance", "why")] for c in clients]
    files = [
        *downloads.inside("clients.csv", downloads.as_csv(["client", *COLUMNS], rows)),
        *downloads.inside("report.json", downloads.as_json(report)),
    ]
    if drawn is not None:
        files += downloads.inside("layers.svg", svg.standalone([drawn]))
        files += (
            downloads.inside("layers.png", figure.heatmaps_png([drawn], KEY, DOT_MEANS)) if figure.available() else []
        )
    return render(
        "aggregate.html", heading="Whom the average believed", verdict=sentence(report), warnings=report["warnings"],
        map=drawn, key=KEY, dot=DOT_MEANS if drawn is not None and np.any(drawn.marks) else "",
        shown_layers=0 if drawn is None else len(drawn.rows), all_layers=len(report.get("layers") or ()),
        used_clients=len(clients) - len(report["excluded"]),
        noticed=_table([c for c in clients if c["verdict"] in NOTICED][:MOST_CLIENTS]), everybody=_table(clients),
        reasons=[text.replace(", 1 round", "") for text in reasons], facts=_facts(report), downloads=files,
    )  # fmt: skip


def sentence(report: Mapping[str, Any]) -> str:
    """The verdict in words: who is accused, who is unusual, who was excluded."""
    from honestly.show.layer_map import bare_names

    clients = report["clients"]
    clauses = [f"{len(clients) - len(report['excluded'])} of {len(clients)} updates were usable"]
    ids = [c["id"] for c in clients]
    short = dict(zip(ids, bare_names(ids), strict=True))
    words = {"accused": "accused of lying", "unusual": "unusual", "abstained": "abstained", "excluded": "excluded"}
    for verdict, word in words.items():
        names = [shorten(short[c["id"]], 40) for c in clients if c["verdict"] == verdict]
        if names:
            more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
            clauses.append(f"{word}: {', '.join(names[:MOST_NAMES])}{more}")
        elif verdict == "accused" and report["malicious"] is not None:
            clauses.append("nobody accused of lying")
    return "; ".join(clauses) + "."


def _table(clients: Sequence[Mapping[str, Any]]) -> Any:
    from honestly.show.tables import Table

    rows: list[list[Any]] = []
    for c in clients:
        most = [layer for layer in (c.get("layers") or [])[:3] if layer["share"] >= 0.005]
        layers = ", ".join(f"{layer['layer']} ({100 * layer['share']:.0f} %)" for layer in most)
        why = f"excluded: {c['reason']}" if c["excluded"] else c["why"]
        numbers = [_digits(c["honesty"], 3), _digits(c["weight"], 4)]
        distance = "-" if c["distance"] is None else f"{c['distance']:.4g}"
        rows.append([shorten(c["id"], 60), c["verdict"], *numbers, distance, shorten(why, 200), layers])
    return Table("clients", "", "", ["client", *COLUMNS, "differs most in"], rows)


def _facts(report: Mapping[str, Any]) -> list[str]:
    steps = " after ".join([report["rule"], *reversed(report["pre"])])
    lora = [f"LoRA {key.replace('_', ' ')}: {value}" for key, value in (report.get("lora") or {}).items()]
    return [f"rule: {steps}", f"status: {report['status']}", f"steps: {report['steps']}", *lora]


def write(file: str, text: str) -> None:
    """Write a report in one step, so no reader sees half of it."""
    write_atomically(Path(file), text)
