"""Drawings show the same numbers in written pages, in the live page and in matplotlib's files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from honestly.runs.record import RoundRecord
from honestly.show import figure, run_page
from honestly.show.chart import DOT, RING, Heatmap
from honestly.show.figure import run_figure
from honestly.show.layer_map import DOT_MEANS, KEY
from honestly.show.live.rounds import MOST_ROUNDS, detail
from honestly.show.live.run_maps import heatmaps
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


@pytest.mark.parametrize("honesty", [True, False])
def test_the_live_page_shows_the_maps_of_the_written_page(honesty: bool) -> None:
    rounds = records(honesty=honesty)
    written = RunView("x", rounds, [str(k) for k in range(CLIENTS)]).maps()
    sent = detail([json.loads(json.dumps(r.as_json())) for r in rounds], {"clients": CLIENTS})
    live = heatmaps(sent.head(), sent.rounds, ROUNDS + 3)
    assert len(live) == len(written) == (3 if honesty else 2)
    for ours, theirs in zip(live, written, strict=True):
        assert (ours.title, list(ours.rows), ours.columns) == (theirs.title, theirs.rows, list(range(1, ROUNDS + 4)))
        np.testing.assert_allclose(ours.values[:, :ROUNDS], theirs.values, atol=5.1e-4)
        assert np.isnan(ours.values[:, ROUNDS:]).all()  # rounds to come
        if theirs.marks is None:
            assert ours.marks is None
        else:
            assert ours.marks is not None
            np.testing.assert_array_equal(ours.marks[:, :ROUNDS], theirs.marks)
            assert {DOT, RING} <= set(theirs.marks.ravel())


def test_the_maps_of_a_run_that_claims_a_billion_rounds_stay_small() -> None:
    sent = detail([json.loads(json.dumps(r.as_json())) for r in records()], {"clients": CLIENTS})
    assert {one.values.shape for one in heatmaps(sent.head(), sent.rounds, 10**9)} == {(CLIENTS, MOST_ROUNDS)}


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
    (key,) = run_figure(rounds, clients=CLIENTS, attack="lies").legends
    words = [text.get_text() for text in key.get_texts()]
    assert words[-2:] == ["accused", "excluded"]
    page = run_page.page("x", [view])
    assert all(f">{word}" in page or f"{word}<" in page for word in words)
    for label, title in (("test accuracy", "Test accuracy"), ("attack success rate", "Attack success rate")):
        np.testing.assert_array_equal(lines[label], np.transpose([charts[title].xs, charts[title].ys]))


def test_marks_in_pictures_stand_out_from_their_cells() -> None:
    """White dots could not be seen where honesty is about one half, nor white rings where there is none."""
    rounds = [RoundRecord(round=1, honesty=[0.0, 0.45, None, 1.0], accused=[0, 1, 3], excluded=[2])]
    axis = run_figure(rounds, clients=4).axes[0]
    (image,) = axis.images
    cells = image.cmap(image.norm(image.get_array()))[:, 0, :3].mean(axis=1)
    seen: list[int] = []
    for marks in axis.collections:
        for _, row in marks.get_offsets():
            assert abs(marks.get_edgecolors()[0, :3].mean() - cells[int(row)]) > 0.4
            seen.append(int(row))
    assert sorted(seen) == [0, 1, 2, 3]


@pytest.mark.parametrize("columns", [2, 60])
def test_the_key_of_a_picture_is_not_cut(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values, marks = np.zeros((3, columns)), np.full((3, columns), DOT, np.int8)
    names = [str(k) for k in range(columns)]
    what = Heatmap("x", "client", "layer", ["a", "b", "c"], names, values, lambda i, j: "", marks)
    drawn: list[Any] = []
    monkeypatch.setattr(figure, "png", drawn.append)
    figure.heatmaps_png([what], KEY, DOT_MEANS)
    drawn[0].draw_without_rendering()
    (key,) = drawn[0].legends
    assert key.get_window_extent().x1 <= drawn[0].bbox.x1
    assert len(key.get_texts()) == 3


def test_no_curve_crosses_its_name() -> None:
    for level in (0.05, 0.1, 0.5, 1.0):
        rounds = [RoundRecord(round=t, accuracy=level, asr=level / 2, honesty=[1.0]) for t in range(1, 6)]
        drawn = run_figure(rounds, clients=1)
        drawn.draw_without_rendering()
        axis = drawn.axes[-1]
        assert axis.get_legend().get_window_extent().y0 >= axis.get_window_extent().y1
