"""The heatmaps of a run, out of what the page knows of its rounds (see `honestly.show.live.rounds`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import numpy as np
from markupsafe import Markup

from honestly.runs.record import RoundRecord
from honestly.show import svg
from honestly.show.chart import DOT, RING, Heatmap
from honestly.show.html import part
from honestly.show.live.rounds import MOST_ROUNDS
from honestly.show.maps import belief_map, key_words, truth_map, weight_map


def heatmaps(head: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], end: int) -> list[Heatmap]:
    """The maps of the written page, with all clients that are sent, and empty columns for the rounds to come."""
    records = _records(head, rounds)
    names = [str(client) for client in head["names"] or head["shown"]]
    truth = truth_map(records, names) if head["truth"] else None
    maps = [truth, belief_map(records, names), weight_map(records, names)]
    return [_extend(one, end) for one in maps if one is not None]


def _records(head: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> list[RoundRecord]:
    """Records in which clients are numbered as they are shown."""
    rows = {client: i for i, client in enumerate(head["shown"])}
    everybody = range(len(rows))

    def number(clients: Iterable[Any]) -> list[int]:
        return [rows[int(client)] for client in clients]

    records: list[RoundRecord] = []
    for r in rounds:
        belief, weight = _shares(r["belief"]), _shares(r.get("weight"))
        honest = head["belief"] == "honesty"
        records.append(
            RoundRecord(
                round=r["round"], attacked=number(r["attacked"]), excluded=number(r.get("excluded", ())),
                accused=None if r["accused"] is None else number(r["accused"]),
                honesty=belief if honest else None, weights=weight if honest else belief,
                participants=number(r["here"]) if "here" in r else everybody,
            )
        )  # fmt: skip
    return records


def _shares(values: Sequence[int | None] | None) -> list[float | None] | None:
    return None if values is None else [None if v is None else v / 1000 for v in values]


def _extend(what: Heatmap, end: int) -> Heatmap:
    """Add columns for the rounds to come; a run may claim a billion of them."""
    rounds = [int(column) for column in what.columns]
    more = range(rounds[-1] + 1, rounds[-1] + 1 + min(end, MOST_ROUNDS) - len(rounds))
    empty = ((0, 0), (0, len(more)))
    marks = None if what.marks is None else np.pad(what.marks, empty)
    values = np.pad(what.values, empty, constant_values=np.nan)
    return replace(what, columns=[*rounds, *more], values=values, marks=marks, chosen=range(len(what.rows)))


def maps_page(run: str, maps: Sequence[Heatmap], head: Mapping[str, Any], *, theme: str, version: str) -> str:
    """The maps side by side with the meaning of their colours, as the page puts them in place."""
    drawn = [
        svg.heatmap(one, cells=f"/cells.png?{urlencode({'run': run, 'map': i, 'theme': theme, 'version': version})}")
        for i, one in enumerate(maps)
    ]
    accused, excluded = (any(one.has_marks(kind) for one in maps) for kind in (DOT, RING))
    belief = head["belief"] if any(one.marks is not None for one in maps) else None
    colours = {"key": key_words(maps, belief), "accused": accused, "excluded": excluded}
    key = part("key", colours) if maps else Markup("")
    three = " three" if len(maps) > 2 else ""
    return f'<!doctype html><title>Maps</title><div><div class="pair{three}">{Markup("").join(drawn)}</div>{key}</div>'
