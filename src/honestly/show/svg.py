"""Curves and heatmaps as inline SVG, without scripts or fonts, for light and dark themes and any width.

Horizontal positions are percentages of the width, vertical ones are pixels. `standalone` draws the same for a file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup, escape

from honestly.show.chart import COLOURS, DOT, Chart, Heatmap, Line, dashes, ticks
from honestly.show.palette import colours
from honestly.show.text import shorten

#: The most letters of a client's name (a node id of Flower has 20) and of any other name (an attack with its settings
#: has up to 39), and the pixels of one letter.
LETTERS, MOST_LETTERS, LETTER = 22, 44, 6.6
FILE_WIDTH = 720


def _e(text: object, most: int = 200) -> str:
    return str(escape(shorten(text, most)))


def _ends(text: object, most: int) -> str:
    """Shorten a long name in the middle: names of machines often differ only at their ends."""
    whole = shorten(text, 200)
    return whole if len(whole) <= most else f"{whole[: most // 3]}…{whole[-(most - most // 3 - 1) :]}"


def _share(value: float) -> str:
    return f"{100 * value:.2f}".rstrip("0").rstrip(".") + "%"


class _Drawing:
    """The content of a drawing and the margins that its labels need."""

    def __init__(self, height: float, left: float, below: float, above: float = 8) -> None:
        self.height, self.left, self.below, self.above = height, left, below, above
        self.parts: list[str] = []

    def frame(self, label: str, live: bool) -> str:
        """The drawing; the policy of the live page forbids styles in attributes, so its script sets the margins."""
        room = f"--left:{self.left:g}px;--below:{self.below:g}px;--above:{self.above:g}px"
        margins = f'{"data-room" if live else "style"}="{room}"'
        return (
            f'<svg class="plot" height="{self.height:g}" {margins} role="img" aria-label="{_e(label, 1000)}">'
            f"{''.join(self.parts)}</svg>"
        )


# -- curves ---------------------------------------------------------------------------------------------------------


def chart(what: Chart, height: float = 160, *, live: bool = False) -> Markup:
    """The curves with a title and a legend; `live` for the live page, see `_Drawing.frame`."""
    picture = _curves(what, height).frame(_label(what), live)
    keys = "".join(
        f'<li><svg width="26" height="10" aria-hidden="true"><line x1="0" x2="26" y1="5" y2="5" stroke-width="3" '
        f"{_stroke(number)}/></svg>{_name(line)}" + (f" <b>{_last(line)}</b>" if what.ends else "") + "</li>"
        for number, line in what.numbered()
    )
    title = what.title[:1].upper() + what.title[1:]
    return Markup(
        f'<figure class="chart"><figcaption>{_e(title)}</figcaption><div class="picture">{picture}</div>'
        f'<ul class="legend">{keys}</ul></figure>'
    )


def _label(what: Chart) -> str:
    last = [f"{line.name}: {_last(line)}" for line in what.lines if what.ends]
    return what.title + (f"; last values {', '.join(last)}" if last else "")


def _name(line: Line) -> str:
    name = f"<bdi>{_e(line.name, 80)}</bdi>"
    return f'<a href="{_e(line.link, 1000)}">{name}</a>' if line.link else name


def _last(line: Line) -> str:
    return f"{line.ys[-1]:.3f}" if line.ys else "–"


def _stroke(number: int) -> str:
    dash = dashes(number)
    return f'class="c{number % COLOURS + 1}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _curves(what: Chart, height: float) -> _Drawing:
    (x0, x1), (y0, y1) = what.xlim, what.ylim
    drawing = _Drawing(height, left=38, below=36)
    out = drawing.parts

    def x(v: float) -> float:
        return (v - x0) / ((x1 - x0) or 1.0)

    def y(v: float) -> float:
        return height * (1 - (min(max(v, y0), y1) - y0) / ((y1 - y0) or 1.0))

    for tick in np.linspace(y0, y1, 5):
        out.append(f'<line class="rule" x1="0" x2="100%" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        out.append(f'<text x="-6" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.3g}</text>')
    for tick in (t for t in ticks(x0, x1) if what.x != "round" or t == int(t)):
        out.append(f'<text x="{_share(x(tick))}" y="{height + 15:g}" text-anchor="middle">{tick:g}</text>')
    out.append(f'<text class="axis" x="50%" y="{height + 31:g}" text-anchor="middle">{_e(what.x)}</text>')
    out.append(
        f'<svg width="100%" height="{height:g}" viewBox="0 0 1000 {height:g}" preserveAspectRatio="none" '
        'overflow="visible">'
    )
    if what.diagonal:
        out.append(f'<line class="diagonal" x1="0" y1="{height:g}" x2="1000" y2="0"/>')
    numbered = what.numbered()[::-1]  # the first curve is drawn on top
    for number, line in numbered:
        points = " ".join(f"{1000 * x(a):.1f},{y(b):.1f}" for a, b in zip(line.xs, line.ys, strict=True))
        stroke = _stroke(number).replace('class="', 'class="curve ')
        out.append(f'<polyline points="{points}" {stroke}><title>{_e(line.name)}</title></polyline>')
    out.append("</svg>")
    for number, line in numbered:
        colour = number % COLOURS + 1
        for a, b, s in zip(line.xs, line.ys, line.spread, strict=False):
            if s > 0:
                at = f'x1="{_share(x(a))}" x2="{_share(x(a))}" y1="{y(b - s):.1f}" y2="{y(b + s):.1f}"'
                out.append(f'<line class="whisker c{colour}" {at}/>')
        sizes = line.sizes()
        dotted = range(len(line.xs)) if what.dots else range(len(line.xs))[-1:]
        for i in dotted:
            radius = 2 + 6 * sizes[i] if what.dots else 3.5
            at = f'cx="{_share(x(line.xs[i]))}" cy="{y(line.ys[i]):.1f}"'
            out.append(
                f'<circle class="f{colour}" {at} r="{radius:.1f}">'
                f"<title>{_e(line.name)}: {line.xs[i]:g}, {line.ys[i]:.3g}</title></circle>"
            )
    return drawing


# -- heatmaps -------------------------------------------------------------------------------------------------------


def heatmap(what: Heatmap) -> Markup:
    """The map with a title; each cell has a tooltip."""
    drawing, K = _cells(what), len(what.drawn_rows())
    label = f"{what.title}: {K} {what.y}s by {len(what.columns)} {what.x}s; all values follow as a table"
    picture = drawing.frame(label, live=False)
    if len(what.columns) > 24 and not what.numbered:  # vertical labels need room: the frame scrolls
        least = drawing.left + 14 * len(what.columns)
        inside = f'<div style="min-width:{least:g}px">{picture}</div>'
        picture = f'<div class="scroll" tabindex="0" role="region" aria-label="{_e(what.title)}">{inside}</div>'
    more = f"{K} of {len(what.rows)} {what.y}s: those with the lowest values."
    note = f'<p class="muted">{_e(more)}</p>' if len(what.rows) > K else ""
    title = _e(what.title)
    return Markup(
        f'<figure class="heat"><figcaption>{title}</figcaption><div class="picture">{picture}</div>{note}</figure>'
    )


def _cells(what: Heatmap) -> _Drawing:
    rows, T = what.drawn_rows(), max(len(what.columns), 1)
    K = len(rows)
    tall = 16.0 if K <= 12 else 13.0 if K <= 24 else 12.0 if K <= 40 or not what.numbered else 8.0
    names = [_ends(what.rows[k], LETTERS if what.numbered else 30) for k in rows]
    left = 14 + LETTER * max((len(name) for name in [*names, what.y]), default=1)
    drawing = _Drawing(K * tall, left=left, below=36, above=20)
    out = drawing.parts
    out.append(f'<text class="axis" x="-6" y="-6" text-anchor="end">{_e(what.y)}</text><g class="cells">')
    out.append(f'<rect class="none" width="100%" height="{K * tall:g}"/>')
    for i, k in enumerate(rows):
        name = f"{_e(what.y)} {_e(what.rows[k], 100)}"
        for start, end, word in what.stretches(k):
            title = f"{name}, {_e(what.span(start, end))}: {_e(word)}"
            at = f'x="{_share(start / T)}" y="{i * tall:g}" width="{_share((end - start) / T)}" height="{tall - 1:g}"'
            out.append(f"<g><title>{title}</title>{_fill(float(what.values[k, start]), at)}</g>")
    if T <= 60:
        for t in range(1, T):
            at = f'x1="{_share(t / T)}" x2="{_share(t / T)}"'
            out.append(f'<line class="gap" {at} y1="0" y2="{K * tall:g}"/>')
    out.append("</g>")
    out += _marks(what, rows, tall)
    every = 1 if tall >= 12 else 2
    for i in range(0, K, every):
        title = "" if names[i] == what.rows[rows[i]] else f"<title>{_e(what.rows[rows[i]])}</title>"
        at = f'x="-6" y="{(i + 0.5) * tall + 3.5:.1f}" text-anchor="end"'
        out.append(f"<text {at}>{title}{_e(names[i])}</text>")
    _below(what, drawing, T)
    return drawing


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
    T = len(what.columns)
    if what.marks is None or T > 200:
        return []
    dense = " dense" if T > 60 else ""
    radius = min(tall / 5, 300 / T)
    out: list[str] = []
    for i, k in enumerate(rows):
        for t in np.flatnonzero(what.marks[k]):
            ring = "" if what.marks[k, t] == DOT else " ring"
            value = what.values[k, t]
            on = " on" if not np.isnan(value) and abs(value - 0.5) > 0.25 else ""
            at = f'cx="{_share((t + 0.5) / T)}" cy="{(i + 0.5) * tall - 0.5:g}" r="{radius:.1f}"'
            out.append(f'<circle class="mark{ring}{on}{dense}" {at}/>')
    return out


def _below(what: Heatmap, drawing: _Drawing, T: int) -> None:
    """The labels of the columns: some numbers of rounds, or every name, vertically."""
    out, height = drawing.parts, drawing.height
    if what.numbered:
        column = {number: t for t, number in enumerate(what.columns)}
        numbers = [int(number) for number in what.columns]
        for number in ticks(numbers[0], numbers[-1]) if numbers else ():
            if number in column:
                at = f'x="{_share((column[int(number)] + 0.5) / T)}" y="{height + 14:g}"'
                out.append(f'<text {at} text-anchor="middle">{number:g}</text>')
        out.append(f'<text class="axis" x="50%" y="{height + 30:g}" text-anchor="middle">{_e(what.x)}</text>')
        return
    names = [_ends(name, MOST_LETTERS) for name in what.columns]
    longest = max((len(name) for name in names), default=1)
    if T * longest * LETTER < 240:  # they fit side by side on a phone
        for t, name in enumerate(names):
            at = f'x="{_share((t + 0.5) / T)}" y="{height + 14:g}"'
            out.append(f'<text {at} text-anchor="middle">{_e(name)}</text>')
        out.append(f'<text class="axis" x="50%" y="{height + 30:g}" text-anchor="middle">{_e(what.x)}</text>')
        return
    for t, name in enumerate(names):
        title = "" if name == what.columns[t] else f"<title>{_e(what.columns[t])}</title>"
        turned = f'<text transform="rotate(-90)" text-anchor="end" x="-6" y="4">{title}{_e(name)}</text>'
        out.append(f'<svg x="{_share((t + 0.5) / T)}" y="{height:g}" overflow="visible">{turned}</svg>')
    drawing.below = 26 + LETTER * longest
    at = f'x="50%" y="{height + drawing.below - 6:g}"'
    out.append(f'<text class="axis" {at} text-anchor="middle">{_e(what.x)}</text>')


def ramp_key(low: str, high: str, *, dot: str = "", ring: str = "") -> Markup:
    """What the colours and marks of a heatmap mean."""
    marks = [
        '<li><svg width="14" height="14" aria-hidden="true"><rect class="lo" width="14" height="14" rx="2"/>'
        f'<circle class="mark{kind}" cx="7" cy="7" r="3"/></svg>{_e(text)}</li>'
        for text, kind in ((dot, ""), (ring, " ring"))
        if text
    ]
    ramp = f'<li>{_e(low)}<span class="ramp" aria-hidden="true"></span>{_e(high)}</li>'
    return Markup(f'<ul class="legend key">{ramp}{"".join(marks)}</ul>')


# -- files ----------------------------------------------------------------------------------------------------------


def standalone(parts: Sequence[Chart | Heatmap]) -> str:
    """The drawings below each other as an SVG file, in the colours of the light theme."""
    out: list[str] = []
    down = 0.0
    for what in parts:
        drawing = _curves(what, 160) if isinstance(what, Chart) else _cells(what)
        keys = what.numbered() if isinstance(what, Chart) else ()
        out.append(f'<text x="8" y="{down + 18:g}" font-weight="bold">{_e(what.title)}</text>')
        down += 26 + drawing.above
        wide = FILE_WIDTH - drawing.left - 20
        out.append(f'<svg x="{drawing.left:g}" y="{down:g}" width="{wide:g}" height="{drawing.height:g}" '
                   f'overflow="visible">{"".join(drawing.parts)}</svg>')  # fmt: skip
        down += drawing.height + drawing.below + 6
        for number, line in keys:
            out.append(f'<line x1="38" x2="64" y1="{down:g}" y2="{down:g}" stroke-width="3" {_stroke(number)}/>')
            out.append(f'<text x="72" y="{down + 4:g}">{_e(line.name, 80)}</text>')
            down += 16
        down += 12
    root = f'<svg xmlns="http://www.w3.org/2000/svg" width="{FILE_WIDTH}" height="{down:g}">'
    return f'{root}<style>{_file_style()}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(out)}</svg>\n'


def _file_style() -> str:
    c = colours()
    lines = "".join(f".c{n}{{stroke:{c[f'line{n}']}}}.f{n}{{fill:{c[f'line{n}']}}}" for n in range(1, COLOURS + 1))
    return (
        f"text{{font:11px system-ui,sans-serif;fill:{c['text']}}}.axis{{fill:{c['muted']}}}.rule{{stroke:{c['line']}}}"
        f".curve{{fill:none;stroke-width:2.2;vector-effect:non-scaling-stroke}}.diagonal{{stroke:{c['muted']}}}"
        f".none{{fill:{c['hollow']}}}.mid{{fill:{c['middle']}}}.lo{{fill:{c['low']}}}.hi{{fill:{c['high']}}}"
        f".gap{{stroke:#fff}}.mark{{fill:{c['text']};stroke:{c['text']}}}.mark.on{{fill:#fff;stroke:#fff}}"
        f".mark.ring{{fill:none}}{lines}"
    )
