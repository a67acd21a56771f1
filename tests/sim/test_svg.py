"""Drawings by hand: every value is where it belongs, and no name gets out of its place."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

from honestly.show.svg import Chart, Line, chart, heat, red_to_green, shown_rows, ticks

HOSTILE = "\"'><script>alert(1)</script>\x1b[2J"


def rectangles(text: str) -> list[tuple[int, int, int, str]]:
    found = re.findall(r"<rect x='(\d+)' y='(\d+)' width='(\d+)' height='.92' fill='(#\w+)'>", text)
    return [(int(x), int(y), int(w), colour) for x, y, w, colour in found]


def test_a_heatmap_shows_every_value_and_joins_equal_neighbours() -> None:
    rng = np.random.default_rng(1)
    grid = rng.integers(0, 3, (7, 40)) / 2
    grid[rng.random(grid.shape) < 0.1] = np.nan
    text = heat(grid, red_to_green, label="x", clients=[str(k) for k in range(7)], rounds=list(range(1, 41)))
    drawn = np.full(grid.shape, "", dtype=object)
    found = rectangles(text)
    for x, y, width, colour in found:
        assert not drawn[y, x : x + width].any()
        drawn[y, x : x + width] = colour
    for k, t in np.ndindex(*grid.shape):
        assert drawn[k, t] == ("" if np.isnan(grid[k, t]) else red_to_green(grid[k, t]))
    assert len(found) < np.isfinite(grid).sum()
    constant = heat(np.ones((7, 40)), red_to_green, label="x", clients=[str(k) for k in range(7)], rounds=range(1, 41))
    assert len(rectangles(constant)) == 7
    assert "<title>client 3, rounds 1–40: 1</title>" in constant


def test_of_thousands_of_clients_the_least_believed_are_shown() -> None:
    grid = np.ones((5000, 3))
    grid[[17, 4000]] = 0.0
    grid[18] = np.nan
    kept = shown_rows(grid)
    assert len(kept) == 100
    assert {17, 4000} <= set(kept)
    assert 18 not in kept
    text = heat(grid, red_to_green, label="x", clients=[str(k) for k in range(5000)], rounds=[1, 2, 3])
    assert "100 of 5000 clients" in text


def test_names_are_escaped() -> None:
    drawn = heat(np.ones((1, 2)), red_to_green, label=HOSTILE, clients=[HOSTILE], rounds=[1, 2])
    drawn += chart(Chart(HOSTILE, HOSTILE, "y", [Line(HOSTILE, [0, 1], [0, 1]), Line("b", [0], [1])]))
    seen: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.add(tag)
            assert not [name for name, _ in attrs if name.startswith("on") or name in ("href", "src", "style")]

    Reader().feed(drawn)
    assert seen <= {"div", "svg", "path", "text", "polyline", "title", "circle", "ul", "li", "g", "rect"}
    assert "\x1b" not in drawn


@pytest.mark.parametrize(("low", "high"), [(1, 2), (1, 25), (1, 100), (1, 1000), (0, 0.4), (0, 1), (3, 3), (0, 1e-3)])
def test_ticks_are_few_and_within(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 9
    assert all(low <= t <= high for t in found)
    assert found == sorted(set(found))
