"""Heatmaps as inline SVG. Few cells are elements with tooltips, many are the pixels of one image."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from honestly.show.chart import DOT, MOST_MARKED, Heatmap, ticks
from honestly.show.pixels import cells_png
from honestly.show.svg_parts import Drawing, escape_text, percent
from honestly.show.text import shorten

#: The most letters of a client's name (a node id of Flower has 20) and of any other name (an attack with its settings
#: has up to 39), and the pixels of one letter.
LETTERS, MOST_LETTERS, LETTER = 22, 44, 6.6
#: Maps with more cells, after joining equal neighbours, are images: as elements with tooltips each cell has 200 bytes.
MOST_CELLS = 4000
#: Images with more columns are wider than they are shown, so the browser has to average columns, not to leave some out.
MOST_SHARP = 300


def _ends(text: object, most: int) -> str:
    """Shorten a long name in the middle: names of machines often differ only at their ends."""
    whole = shorten(text, 200)
    return whole if len(whole) <= most else f"{whole[: most // 3]}…{whole[-(most - most // 3 - 1) :]}"


def heatmap(what: Heatmap, *, cells: str = "") -> Markup:
    """The map with a title; each cell has a tooltip, unless there are too many cells.

    Args:
        what: the map.
        cells: for the live page, the address of the map's cells as an image (`cell_image`). Its script shows values.
    """
    drawing, K, T = draw_cells(what, cells=cells), len(what.drawn_rows()), len(what.columns)
    follow = "" if cells else "; all values follow as a table"
    picture = drawing.frame(f"{what.title}: {K} {what.y}s by {T} {what.x}s{follow}", live=bool(cells))
    title = escape_text(what.title)
    if T > 24 and not what.numbered:  # vertical labels need room: the frame scrolls
        inside = f'<div style="min-width:{drawing.left + 14 * T:g}px">{picture}</div>'
        picture = f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">{inside}</div>'
    more = f"{K} of {len(what.rows)} {what.y}s: those with the lowest values."
    note = f'<p class="muted">{escape_text(more)}</p>' if len(what.rows) > K else ""
    return Markup(
        f'<figure class="heat"><figcaption>{title}</figcaption><div class="picture">{picture}</div>{note}</figure>'
    )


def draw_cells(what: Heatmap, *, cells: str = "", themes: Sequence[str] = ("light", "dark")) -> Drawing:
    """The cells with the names of rows and columns; `themes` are those that an embedded image is needed for."""
    rows, T = what.drawn_rows(), max(len(what.columns), 1)
    K, tall = len(rows), _row_height(what)
    names = [_ends(what.rows[k], LETTERS if what.numbered else 30) for k in rows]
    left = 14 + LETTER * max((len(name) for name in [*names, what.y]), default=1)
    drawing = Drawing(K * tall, left=left, below=36, above=20)
    drawing.shape = K, T
    out = drawing.parts
    out.append(f'<text class="axis" x="-6" y="-6" text-anchor="end">{escape_text(what.y)}</text><g class="cells">')
    out.append(f'<rect class="none" width="100%" height="{K * tall:g}"/>')
    if cells:
        out += _images(what, {"": cells})
    elif sum(len(what.stretches(k)) for k in rows) > MOST_CELLS:
        out += _images(what, {theme if len(themes) > 1 else "": _embed(cell_image(what, theme)) for theme in themes})
    else:
        out += _elements(what)
    out.append("</g>")
    out += _marks(what, rows, tall)
    for i in range(0, K, math.ceil(11 / tall)):
        title = "" if names[i] == what.rows[rows[i]] else f"<title>{escape_text(what.rows[rows[i]])}</title>"
        at = f'x="-6" y="{(i + 0.5) * tall + 3.5:.1f}" text-anchor="end"'
        out.append(f"<text {at}>{title}{escape_text(names[i])}</text>")
    _below(what, drawing, T)
    return drawing


def _row_height(what: Heatmap) -> int:
    K = len(what.drawn_rows())
    if K > 100:
        return max(3, 800 // K)
    return 16 if K <= 12 else 13 if K <= 24 else 12 if K <= 40 or not what.numbered else 8


def _elements(what: Heatmap) -> list[str]:
    """A rectangle with a tooltip for every cell, or for equal neighbours."""
    out: list[str] = []
    T, tall = max(len(what.columns), 1), _row_height(what)
    for i, k in enumerate(what.drawn_rows()):
        name = f"{escape_text(what.y)} {escape_text(what.rows[k], 100)}"
        for start, end, word in what.stretches(k):
            title = f"{name}, {escape_text(what.span(start, end))}: {escape_text(word)}"
            at = f'x="{percent(start / T)}" y="{i * tall:g}" width="{percent((end - start) / T)}" height="{tall - 1:g}"'
            out.append(f"<g><title>{title}</title>{_fill(float(what.values[k, start]), at)}</g>")
    if T <= 60:
        for t in range(1, T):
            at = f'x1="{percent(t / T)}" x2="{percent(t / T)}"'
            out.append(f'<line class="gap" {at} y1="0" y2="{len(what.drawn_rows()) * tall:g}"/>')
    return out


def cell_image(what: Heatmap, theme: str) -> bytes:
    """The cells as a PNG file, for `heatmap`."""
    tall = _row_height(what) if len(what.columns) > MOST_SHARP else 1
    return cells_png(what.values[what.drawn_rows()], theme, tall=tall)


def _embed(image: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"


def _images(what: Heatmap, addresses: Mapping[str, str]) -> list[str]:
    """The cells as an image for each theme, and the lines between them."""
    K, T, tall = len(what.drawn_rows()), max(len(what.columns), 1), _row_height(what)
    size = f'width="100%" height="{K * tall}" preserveAspectRatio="none"'
    sharp = "" if T > MOST_SHARP else "sharp "
    images = [
        f'<image class="{sharp}{theme}" {size} href="{escape_text(address, len(address))}"/>'
        for theme, address in addresses.items()
    ]
    across = [f"M0 {i * tall - 0.5:g}h{T}" for i in range(1, K)] if tall >= 5 else []
    down = [f"M{t} 0v{K * tall}" for t in range(1, T)] if T <= 60 else []
    lines = "".join(across + down)
    return [*images, f'<svg {size} viewBox="0 0 {T} {K * tall}"><path class="gap" d="{lines}"/></svg>']


def _fill(value: float, at: str) -> str:
    """A cell: orange or blue over the pale middle colour, so both themes have the same scale."""
    if np.isnan(value):
        return f'<rect class="none" {at}/>'
    strength = round(abs(2 * min(max(value, 0.0), 1.0) - 1), 2)
    over = f'<rect class="{"lo" if value < 0.5 else "hi"}" {at}'
    if strength >= 1:
        return over + "/>"
    return f'<rect class="mid" {at}/>' + (f'{over} fill-opacity="{strength:g}"/>' if strength else "")


def _marks(what: Heatmap, rows: Sequence[int], tall: float) -> list[str]:
    """Dots as one path for each colour, since there may be thousands; rings as circles."""
    T = len(what.columns)
    if what.marks is None or T > MOST_MARKED:
        return []
    dense = " dense" if T > 60 else ""
    radius = min(tall / 5, 300 / T)
    dots: dict[str, list[str]] = {"": [], " on": []}
    rings: list[str] = []
    strong = what.strong
    for i, k in enumerate(rows):
        y = f"{(i + 0.5) * tall - 0.5:g}"
        for t in np.flatnonzero(what.marks[k]):
            on = " on" if strong[k, t] else ""
            if what.marks[k, t] == DOT:
                dots[on].append(f"M{t + 0.5:g} {y}h0")  # a round cap without a line
            else:
                at = f'cx="{percent((t + 0.5) / T)}" cy="{y}" r="{radius:.1f}"'
                rings.append(f'<circle class="mark ring{on}{dense}" {at}/>')
    paths = "".join(
        f'<path class="dot{on}{dense}" stroke-width="{2 * radius:.1f}" d="{"".join(places)}"/>'
        for on, places in dots.items()
        if places
    )
    size = f'width="100%" height="{len(rows) * tall:g}" viewBox="0 0 {T} {len(rows) * tall:g}"'
    return [f'<svg {size} preserveAspectRatio="none">{paths}</svg>' if paths else "", *rings]


def _below(what: Heatmap, drawing: Drawing, T: int) -> None:
    """The labels of the columns: some numbers of rounds, or every name, vertically."""
    out, height = drawing.parts, drawing.height
    if what.numbered:
        column = {number: t for t, number in enumerate(what.columns)}
        numbers = [int(number) for number in what.columns]
        for number in ticks(numbers[0], numbers[-1]) if numbers else ():
            if number in column:
                at = f'x="{percent((column[int(number)] + 0.5) / T)}" y="{height + 14:g}"'
                out.append(f'<text {at} text-anchor="middle">{number:g}</text>')
        out.append(f'<text class="axis" x="50%" y="{height + 30:g}" text-anchor="middle">{escape_text(what.x)}</text>')
        return
    names = [_ends(name, MOST_LETTERS) for name in what.columns]
    longest = max((len(name) for name in names), default=1)
    if T * longest * LETTER < 240:  # they fit side by side on a phone
        for t, name in enumerate(names):
            at = f'x="{percent((t + 0.5) / T)}" y="{height + 14:g}"'
            out.append(f'<text {at} text-anchor="middle">{escape_text(name)}</text>')
        out.append(f'<text class="axis" x="50%" y="{height + 30:g}" text-anchor="middle">{escape_text(what.x)}</text>')
        return
    for t, name in enumerate(names):
        title = "" if name == what.columns[t] else f"<title>{escape_text(what.columns[t])}</title>"
        turned = f'<text transform="rotate(-90)" text-anchor="end" x="-6" y="4">{title}{escape_text(name)}</text>'
        out.append(f'<svg x="{percent((t + 0.5) / T)}" y="{height:g}" overflow="visible">{turned}</svg>')
    drawing.below = 26 + LETTER * longest
    at = f'x="50%" y="{height + drawing.below - 6:g}"'
    out.append(f'<text class="axis" {at} text-anchor="middle">{escape_text(what.x)}</text>')


def ramp_key(low: str, high: str, *, dot: str = "", ring: str = "") -> Markup:
    """What the colours and marks of a heatmap mean."""
    marks = [
        '<li><svg width="14" height="14" aria-hidden="true"><rect class="lo" width="14" height="14" rx="2"/>'
        f'<circle class="mark{kind}" cx="7" cy="7" r="3"/></svg>{escape_text(text)}</li>'
        for text, kind in ((dot, ""), (ring, " ring"))
        if text
    ]
    ramp = f'<li>{escape_text(low)}<span class="ramp" aria-hidden="true"></span>{escape_text(high)}</li>'
    return Markup(f'<ul class="legend key">{ramp}{"".join(marks)}</ul>')
