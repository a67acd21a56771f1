"""Drawings by hand: every value is where it belongs, and no name gets out of its place."""

import base64
import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import matplotlib.image
import numpy as np
import pytest

from honestly.show.chart import DOT, RING, Chart, Heatmap, Line, drawn_rows, ticks
from honestly.show.palette import colours, shade
from honestly.show.svg import chart, heatmap, standalone

HOSTILE = "\"'><script>alert(1)</script>\x1b[2J\u202e" + "x" * 10_000


def of(grid: np.ndarray, names: list[str] | None = None, marks: np.ndarray | None = None, title: str = "x") -> Heatmap:
    K, T = grid.shape
    clients = names or [str(k) for k in range(K)]
    return Heatmap(title, "round", "client", clients, list(range(1, T + 1)), grid, lambda k, t: f"{grid[k, t]:.2f}",
                   marks)  # fmt: skip


def cells(text: str, T: int) -> dict[tuple[int, int], float]:
    """(row, column) -> value, from what is drawn."""
    found: dict[tuple[int, int], float] = {}
    for drawn in re.findall(r"<g><title>[^<]*</title>(.*?)</g>", text):
        parts = re.findall(r'<rect class="(\w+)" x="([\d.]+)%" y="([\d.]+)" width="([\d.]+)%"[^/]*?'
                           r'(?:fill-opacity="([\d.]+)")?/>', drawn)  # fmt: skip
        kind, x, y, width, opacity = parts[-1]
        strength = 0.0 if kind == "mid" else float(opacity or 1)
        value = 0.5 + strength / 2 * (1 if kind == "hi" else -1)
        first, last = (round((float(x) + w) * T / 100) for w in (0, float(width)))
        for t in range(first, last):
            assert (int(float(y) / 16), t) not in found
            found[int(float(y) / 16), t] = value
    return found


def test_a_heatmap_shows_every_value_and_joins_equal_neighbours() -> None:
    rng = np.random.default_rng(1)
    grid = rng.integers(0, 5, (7, 40)) / 4
    grid[rng.random(grid.shape) < 0.1] = np.nan
    text = heatmap(of(grid))
    found = cells(text, 40)
    assert len(found) == np.isfinite(grid).sum()
    for place, value in found.items():
        assert value == pytest.approx(grid[place], abs=0.006)
    assert text.count("<g><title>") < len(found)
    constant = heatmap(of(np.ones((7, 40))))
    assert constant.count("<g><title>") == 7
    assert "<title>client 3, rounds 1–40: 1.00</title>" in constant


def test_a_heatmap_names_its_axes_and_all_clients() -> None:
    text = heatmap(of(np.ones((20, 5)), [f"site-{k}" for k in range(20)]))
    assert re.findall(r'class="axis"[^>]*>([^<]+)<', text) == ["client", "round"]
    assert [f">site-{k}<" in text for k in range(20)] == [True] * 20


def test_marks_are_dots_and_rings_and_stay_readable_on_their_cell() -> None:
    grid, marks = np.array([[0.0, 0.5, 1.0, np.nan]]), np.array([[DOT, DOT, RING, RING]], dtype=np.int8)
    text = heatmap(of(grid, marks=marks))
    dots = re.findall(r'<svg [^>]*viewBox="0 0 4 16" [^>]*>(<path class="dot.*?)</svg>', text)
    found = re.findall(r'<path class="([^"]*)" stroke-width="6.4" d="([^"]*)"', dots[0])
    assert found == [("dot", "M1.5 7.5h0"), ("dot on", "M0.5 7.5h0")]
    rings = re.findall(r'<circle class="(mark[^"]*)" cx="([\d.]+)%"', text)
    assert rings == [("mark ring on", "62.5"), ("mark ring", "87.5")]
    assert '<rect class="none" x="75%"' in text  # a client that was excluded and not judged has a cell, without colour


def test_marks_need_room() -> None:
    for columns in (200, 201):
        what = of(np.ones((1, columns)), marks=np.full((1, columns), RING, dtype=np.int8))
        assert what.has_marks(RING) == ("<circle" in heatmap(what)) == (columns == 200)
        assert not what.has_marks(DOT)


def decode(address: str) -> np.ndarray:
    """The pixels (height, width, 3) of an embedded PNG file."""
    image = matplotlib.image.imread(io.BytesIO(base64.b64decode(address.removeprefix("data:image/png;base64,"))))
    return np.round(255 * image[..., :3]).astype(int)


@pytest.mark.parametrize(("columns", "tall"), [(250, 1), (500, 12)])
def test_thousands_of_cells_are_an_image_with_every_value(columns: int, tall: int) -> None:
    rng = np.random.default_rng(1)
    grid = rng.uniform(size=(30, columns))
    grid[rng.random(grid.shape) < 0.1] = np.nan
    text = heatmap(of(grid))
    assert len(text) < 8 * grid.size  # two themes; as elements it would have 200 bytes per cell
    assert "<g><title>" not in text
    addresses = dict(re.findall(r'<image class="(?:sharp )?(light|dark)"[^>]*href="([^"]*)"', text))
    for theme, address in addresses.items():
        pixels = decode(address)
        assert pixels.shape == (30 * tall, columns, 3)
        for (k, t), value in np.ndenumerate(grid):
            expected = colours(theme)["hollow"] if np.isnan(value) else shade(round(value, 2), theme)
            assert [f"{c:02x}" for c in pixels[k * tall, t]] == [expected[i : i + 2] for i in (1, 3, 5)]
        np.testing.assert_array_equal(pixels, np.repeat(pixels[::tall], tall, axis=0))
    assert sorted(addresses) == ["dark", "light"]
    file = standalone([of(grid)])
    assert re.findall(r'<image class="([^"]*)"', file) == ["sharp " if tall == 1 else ""]
    assert addresses["light"] in file
    same = heatmap(of(np.ones((30, columns))))
    assert "<image" not in same  # one element per row
    assert "<title>client 3, rounds 1–" in same


def test_the_rows_in_words_have_every_value() -> None:
    grid = np.array([[1.0, 1.0, 0.25], [np.nan, 0.5, 0.5]])
    assert of(grid, ["a", "b"]).lines() == [("a", "1–2: 1.00; 3: 0.25"), ("b", "2–3: 0.50")]


def test_the_least_believed_of_thousands_of_clients_are_shown() -> None:
    grid = np.ones((5000, 3))
    grid[[17, 4000]] = 0.0
    grid[18] = np.nan
    kept = drawn_rows(grid)
    assert len(kept) == 100
    assert {17, 4000} <= set(kept)
    assert 18 not in kept
    assert "100 of 5000 clients" in heatmap(of(grid))


def test_a_transposed_map_says_the_same() -> None:
    grid = np.array([[1.0, 0.25, 0.5], [np.nan, 0.5, 0.0]])
    what = Heatmap("t", "attack", "rule", ["a", "b"], ["x", "y", "z"], grid, lambda i, j: f"{'ab'[i]}{'xyz'[j]}")
    other = what.transpose()
    assert (other.x, other.y, list(other.rows), list(other.columns)) == ("rule", "attack", ["x", "y", "z"], ["a", "b"])
    np.testing.assert_array_equal(other.values, grid.T)
    assert other.word(2, 1) == "bz"


def test_columns_with_names_are_all_named() -> None:
    names = [f"layer.{i}.weight" for i in range(29)] + ["layer_duplicates:distance=3:jitter=0.15"]
    what = Heatmap("layers", "layer", "client", ["a"], names, np.ones((1, 30)), lambda k, t: "x")
    text = heatmap(what)
    assert [f">{name}<" in text for name in names] == [True] * 30
    assert text.count("<title>client a, layer ") == 30  # names are not joined to a range
    assert 'class="scroll" tabindex="0"' in text


def test_names_are_escaped_and_bounded() -> None:
    drawn = heatmap(of(np.ones((1, 2)), [HOSTILE], title=HOSTILE))
    what = Chart(HOSTILE, HOSTILE, "y", [Line(HOSTILE, [0, 1], [0, 1]), Line("b", [0], [1])], ends=True)
    drawn += chart(what)
    seen: set[str] = set()

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.add(tag)
            assert not [name for name, _ in attrs if name.startswith("on") or name in ("href", "src")]
            assert all(re.fullmatch(r"(--\w+:[\d.]+px;?)+", v or "") for name, v in attrs if name == "style")

    Reader().feed(drawn)
    html = {"div", "figure", "figcaption", "ul", "li", "bdi", "b", "p"}
    assert seen <= html | {"svg", "line", "text", "polyline", "title", "circle", "g", "rect"}
    assert "\x1b" not in drawn
    assert "\u202e" not in drawn
    assert len(drawn) < 12_000
    ElementTree.fromstring(standalone([of(np.ones((1, 2)), [HOSTILE], title=HOSTILE), what]))


def test_a_file_needs_no_stylesheet_and_has_every_class_that_it_uses() -> None:
    grid = np.array([[0.0, 0.5, 1.0, 0.6]])
    drawn = standalone([Chart("a", "x", "y", [Line("l", [0, 1], [0, 1])], diagonal=True), of(grid)])
    root = ElementTree.fromstring(drawn)
    used = {name for e in root.iter() for name in e.get("class", "").split()}
    styled = set(re.findall(r"\.(\w+)", root[0].text or ""))
    assert used - styled <= {"cells"}
    assert "var(" not in drawn


def test_curves_end_in_view_and_the_first_lies_on_top() -> None:
    what = Chart(
        "a", "round", "y", [Line("one", [1, 15], [0, 1]), Line("two", [1, 15], [1, 0])], xlim=(1, 15), ends=True
    )
    text = chart(what)
    assert re.findall(r'<circle class="(f\d)" cx="([\d.]+)%"', text) == [("f2", "100"), ("f1", "100")]
    assert "<bdi>one</bdi> <b>1.000</b>" in text
    assert [bool(d) for d in re.findall(r'<polyline[^>]*?class="curve c\d"( stroke-dasharray)?', text)] == [True, False]


def test_colours_are_the_stylesheets() -> None:
    light, dark = colours("light"), colours("dark")
    assert light.keys() == dark.keys()
    assert shade(0.25, "dark") not in (dark["low"], dark["middle"])
    # orange and blue: told apart with any kind of colour blindness, for which blue must differ, not red and green
    for theme in (light, dark):
        low, high = (int(theme[name][5:], 16) for name in ("low", "high"))
        assert high - low > 100


@pytest.mark.parametrize(("low", "high"), [(1, 2), (1, 25), (1, 100), (1, 1000), (0, 0.4), (0, 1), (3, 3), (0, 1e-3)])
def test_ticks_are_few_and_within(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 1 <= len(found) <= 9
    assert all(low <= t <= high for t in found)
    assert found == sorted(set(found))
