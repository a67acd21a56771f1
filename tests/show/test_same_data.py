"""Drawings show the same numbers as SVG in pages, by matplotlib in files and as the live page's maps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from honestly.runs.record import RoundRecord
from honestly.show import run_page, svg
from honestly.show.chart import DOT, RING, Heatmap
from honestly.show.figure import run_figure
from honestly.show.live.rounds import detail
from honestly.show.maps import BEHAVED, BELIEF
from honestly.show.run import RunView

ROUNDS, CLIENTS = 12, 9


def records(*, honesty: bool = True) -> list[RoundRecord]:
    """Rounds in which a client is absent, one is excluded, three lie, and a believed one has little weight."""
    rng = np.random.default_rng(0)
    out: list[RoundRecord] = []
    for t in range(1, ROUNDS + 1):
        here = [k for k in range(CLIENTS) if k != t % 4]
        belief: list[float | None] = [float(rng.uniform()) if k in here and k != 5 else None for k in range(CLIENTS)]
        weights: list[float | None] = [None if v is None else float(rng.uniform()) for v in belief]
        out.append(
            RoundRecord(
                round=t, accuracy=float(rng.uniform()), asr=float(rng.uniform()) if t % 3 else None,
                attacked=[k for k in (6, 7, 8) if t > 2], honesty=belief if honesty else None, weights=weights,
                accused=[7, 8], excluded=[5] if 5 in here else [], participants=here,
            )
        )  # fmt: skip
    return out


def live(rounds: list[RoundRecord]) -> list[dict[str, Any]]:
    """What the live page is sent."""
    return list(detail([json.loads(json.dumps(r.as_json())) for r in rounds], {"clients": CLIENTS}).rounds)


def live_grid(rounds: list[dict[str, Any]], key: str) -> np.ndarray:
    rows = [[np.nan if v is None else v / 1000 for v in one[key]] for one in rounds]
    return np.array(rows).T


@pytest.mark.parametrize("honesty", [True, False])
def test_the_live_page_gets_the_numbers_of_the_written_page(honesty: bool) -> None:
    rounds = records(honesty=honesty)
    view = RunView("x", rounds, [str(k) for k in range(CLIENTS)])
    maps = {one.title: one for one in view.maps()}
    sent = live(rounds)
    belief = maps[BELIEF["honesty" if honesty else "weights"]]
    np.testing.assert_allclose(live_grid(sent, "belief"), belief.values, atol=5.1e-4)
    if honesty:
        np.testing.assert_allclose(live_grid(sent, "weight"), maps[BELIEF["weights"]].values, atol=5.1e-4)
    truth = maps["Who really attacked"].values
    for t, one in enumerate(sent):
        assert one["attacked"] == np.flatnonzero(truth[:, t] == 0).tolist()
        assert sorted({*one["here"]} - {*one["attacked"]}) == np.flatnonzero(truth[:, t] == BEHAVED).tolist()
        assert belief.marks is not None
        assert sorted(map(int, one.get("excluded", ()))) == np.flatnonzero(belief.marks[:, t] == RING).tolist()
        assert sorted({*one["accused"]}) == np.flatnonzero(belief.marks[:, t] == DOT).tolist()


def test_pictures_get_the_numbers_of_the_written_page() -> None:
    rounds = records()
    view = RunView("x", rounds, [str(k) for k in range(CLIENTS)])
    *panels, curves = run_figure(rounds, clients=CLIENTS, attack="lies").axes
    drawn: list[Heatmap] = view.maps()
    assert len(panels) == len(drawn) == 3
    for axis, one in zip(panels, drawn, strict=True):
        np.testing.assert_array_equal(np.ma.filled(axis.images[0].get_array(), np.nan), one.values)
    lines = {line.get_label(): line.get_xydata() for line in curves.lines}
    charts = {chart.title: chart.lines[0] for chart in run_page.charts([view])}
    for label, title in (("test accuracy", "Test accuracy"), ("attack success rate", "Attack success rate")):
        np.testing.assert_array_equal(lines[label], np.transpose([charts[title].xs, charts[title].ys]))


def test_maps_of_the_server_would_be_too_large_for_a_live_page() -> None:
    """The sizes that `docs/explanation/design.md` names: one redraw, and what a round is sent as."""
    rng = np.random.default_rng(0)
    K, R = 20, 100
    rounds = [
        RoundRecord(
            round=t, accuracy=float(rng.uniform()), asr=float(rng.uniform()), attacked=range(6), accused=range(6),
            honesty=rng.uniform(size=K).tolist(), weights=rng.uniform(size=K).tolist(), participants=range(K),
        )
        for t in range(1, R + 1)
    ]  # fmt: skip
    view = RunView("x", rounds, [str(k) for k in range(K)])
    redraw = sum(map(len, map(svg.heatmap, view.maps())))
    one = len(json.dumps(detail([r.as_json() for r in rounds], {"clients": K}).rounds[0], separators=(",", ":")))
    assert redraw == pytest.approx(800_000, rel=0.05)
    assert one == pytest.approx(320, rel=0.1)
