"""The live page draws a heatmap as the written pages do: the same colours, the same marks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from browser import Browser
from watch_page import show
from watch_server import watched

from honestly.federation.history import History
from honestly.federation.record import Round
from honestly.result import ClientId
from honestly.runs.reader import read_rounds
from honestly.show import palette
from honestly.show.run import RunView

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_heatmaps_have_the_colours_and_marks_of_the_written_page(browser: Browser, tmp_path: Path) -> None:
    history, rng = History(tmp_path / "federation", run="spring"), np.random.default_rng(0)
    for t in range(1, 13):
        beliefs: dict[ClientId, float] = {f"node-{k}": float(rng.uniform()) for k in range(6) if (k, t) != (5, 4)}
        excluded: dict[ClientId, str] = {"node-5": "sent NaN"} if t == 4 else {"node-1": "late"} if t == 7 else {}
        clients = tuple(f"node-{k}" for k in range(6))
        history.add(Round(t, clients, beliefs, None, excluded, False, "converged", False))
    history.write()
    rounds = read_rounds(tmp_path / "federation" / "rounds.jsonl")
    (drawn,) = RunView("x", rounds.records, rounds.clients, known=False).maps()
    left, tall = 12 + 6.6 * min(22, max(map(len, rounds.clients))), 16
    with watched(tmp_path / "federation") as server:
        show(browser, server, "#/run/federation")
        browser.until("document.querySelector('figure:not([hidden]) canvas')?.width > 300")
        browser.script("""
            const c = document.querySelector('figure:not([hidden]) canvas');
            window.pen = new OffscreenCanvas(c.width, c.height).getContext('2d', {willReadFrequently: true});
            pen.drawImage(c, 0, 0);
        """)
        side = (browser.script("return pen.canvas.width") - left - 4) / len(rounds.records)
        pixel = "return [...pen.getImageData(arguments[0], arguments[1], arguments[2], 1).data]"
        for k, t in np.ndindex(drawn.values.shape):
            corner = browser.script(pixel, round(left + t * side) + 3, k * tall + 2, 1)[:3]
            value = float(drawn.values[k, t])
            expected = palette.colours()["hollow"] if np.isnan(value) else palette.shade(round(1000 * value) / 1000)
            assert np.abs(np.array(corner) - [int(expected[i : i + 2], 16) for i in (1, 3, 5)]).max() <= 1
            middle = browser.script(pixel, round(left + (t + 0.5) * side) - 6, k * tall + 7, 12)
            across = {tuple(middle[i : i + 3]) for i in range(0, len(middle), 4)}
            assert drawn.marks is not None
            assert (len(across) > 1) == bool(drawn.marks[k, t]), (k, t)
    assert np.isnan(drawn.values[5, 3])  # nobody judges an excluded client, who is marked all the same
