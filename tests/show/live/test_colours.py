"""The maps of the live page, as they are on the screen: the colours and marks of the written pages, and a cursor."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
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

BOX = """
const box = document.querySelector('.heat svg.plot').getBoundingClientRect();
return [box.left, box.top, box.width, box.height];
"""


def federation(folder: Path, rounds: int, clients: int = 6) -> None:
    """A history in which one client sends NaN, and another is late."""
    history, rng = History(folder, run="spring"), np.random.default_rng(0)
    for t in range(1, rounds + 1):
        beliefs: dict[ClientId, float] = {f"node-{k}": float(rng.uniform()) for k in range(clients) if (k, t) != (5, 4)}
        excluded: dict[ClientId, str] = {"node-5": "sent NaN"} if t == 4 else {"node-1": "late"} if t == 7 else {}
        history.add(Round(t, tuple(f"node-{k}" for k in range(clients)), beliefs, None, excluded, False, "", False))
    history.write()


def screen(browser: Browser, path: Path) -> np.ndarray:
    """The pixels (height, width, 3) of the page."""
    browser.screenshot(path)
    return np.round(255 * matplotlib.image.imread(path)[..., :3]).astype(int)


def rgb(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_heatmaps_have_the_colours_and_marks_of_the_written_page(browser: Browser, tmp_path: Path, theme: str) -> None:
    federation(tmp_path / "federation", 12)
    rounds = read_rounds(tmp_path / "federation" / "rounds.jsonl")
    (drawn,) = RunView("x", rounds.records, rounds.clients, known=False).maps()
    with watched(tmp_path / "federation") as server:
        show(browser, server, "#/run/federation")
        browser.until("document.querySelector('.heat svg.plot[tabindex]')")
        browser.media(scheme=theme)  # the page follows
        browser.until("document.querySelector('.heat image').getAttribute('href').includes(arguments[0])", theme)
        pixels = screen(browser, tmp_path / "page.png")
        left, top, width, height = browser.script(BOX)
        side, tall = width / 12, height / 6
        for k, t in np.ndindex(drawn.values.shape):
            corner = pixels[round(top + k * tall) + 3, round(left + t * side) + 3]
            value = float(drawn.values[k, t])
            level = np.round(round(1000 * value) / 10) / 100 if np.isfinite(value) else 0.0  # sent with three digits
            expected = palette.colours(theme)["hollow"] if np.isnan(value) else palette.shade(level, theme)
            assert np.abs(corner - rgb(expected)).max() <= 1, (k, t)
            x, y = round(left + (t + 0.5) * side), round(top + (k + 0.5) * tall)
            across = {tuple(pixel) for pixel in pixels[y - 1, x - 6 : x + 6]}
            assert drawn.marks is not None
            assert (len(across) > 1) == bool(drawn.marks[k, t]), (k, t)
    assert np.isnan(drawn.values[5, 3])  # nobody judges an excluded client, who is marked all the same


def test_pointing_at_a_cell_says_its_value(browser: Browser, tmp_path: Path) -> None:
    federation(tmp_path / "federation", 500, clients=20)
    records = read_rounds(tmp_path / "federation" / "rounds.jsonl").records
    with watched(tmp_path / "federation") as server:
        show(browser, server, "#/run/federation")
        browser.until("document.querySelector('.heat svg.plot[tabindex]')")
        left, top, width, height = browser.script(BOX)
        for k, t in ((0, 0), (7, 250), (19, 499), (5, 3)):
            x, y = left + (t + 0.5) * width / 500, top + (k + 0.5) * height / 20
            browser.cdp("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
            honesty = (records[t].honesty or ())[k]
            said = "excluded: sent NaN" if (k, t) == (5, 3) else f"honesty {honesty:.3f}"
            names = records[t].clients or ()
            browser.until(
                "document.querySelector('.readout').textContent.startsWith(arguments[0])",
                f"client {names[k]}, round {t + 1}, {said}",
            )
            assert browser.script("return document.querySelectorAll('.cursor').length") == 1
        pixels = screen(browser, tmp_path / "page.png")
        middle = pixels[round(top + height / 2) + 3, round(left) : round(left + width)]
        assert len({tuple(pixel) for pixel in middle}) > 20  # the image has arrived
        saved = browser.wait_for(
            "import('/static/picture.js').then((m) => m.toPng('/maps.svg?run=federation')).then(createImageBitmap)"
            ".then((image) => { const all = new OffscreenCanvas(image.width, image.height);"
            "const pen = all.getContext('2d'); pen.drawImage(image, 0, 0);"
            "const row = pen.getImageData(0, all.height / 2, all.width, 1).data.buffer;"
            "return new Set(new Uint32Array(row)).size; })"
        )
        assert saved > 20  # the file has the image inside
