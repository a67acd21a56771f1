"""Curves and heatmaps as inline SVG, without scripts or fonts, for light and dark themes and any width.

Horizontal positions are percentages of the width, vertical ones are pixels. `standalone` draws the same for a file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from honestly.show.chart import COLOURS, Chart, Heatmap, Line, dashes, ticks
from honestly.show.palette import colours
from honestly.show.svg_maps import draw_cells, heatmap, ramp_key
from honestly.show.svg_parts import Drawing, escape_text, percent

__all__ = ["chart", "heatmap", "ramp_key", "standalone"]

FILE_WIDTH = 720


def chart(what: Chart, height: float = 160, *, live: bool = False) -> Markup:
    """The curves with a title and a legend; `live` for the live page, see `Drawing.frame`."""
    picture = _curves(what, height).frame(_label(what), live)
    keys = "".join(
        f'<li><svg width="26" height="10" aria-hidden="true"><line x1="0" x2="26" y1="5" y2="5" stroke-width="3" '
        f"{_stroke(number)}/></svg>{_name(line)}" + (f" <b>{_last_value(line)}</b>" if what.ends else "") + "</li>"
        for number, line in what.numbered()
    )
    title = what.title[:1].upper() + what.title[1:]
    return Markup(
        f'<figure class="chart"><figcaption>{escape_text(title)}</figcaption><div class="picture">{picture}</div>'
        f'<ul class="legend">{keys}</ul></figure>'
    )


def _label(what: Chart) -> str:
    last = [f"{line.name}: {_last_value(line)}" for line in what.lines if what.ends]
    return what.title + (f"; last values {', '.join(last)}" if last else "")


def _name(line: Line) -> str:
    name = f"<bdi>{escape_text(line.name, 80)}</bdi>"
    return f'<a href="{escape_text(line.link, 1000)}">{name}</a>' if line.link else name


def _last_value(line: Line) -> str:
    return f"{line.ys[-1]:.3f}" if line.ys else "–"


def _stroke(number: int) -> str:
    dash = dashes(number)
    return f'class="c{number % COLOURS + 1}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _curves(what: Chart, height: float) -> Drawing:
    (x0, x1), (y0, y1) = what.xlim, what.ylim
    drawing = Drawing(height, left=38, below=36)
    out = drawing.parts

    def x(v: float) -> float:
        return (v - x0) / ((x1 - x0) or 1.0)

    def y(v: float) -> float:
        return height * (1 - (min(max(v, y0), y1) - y0) / ((y1 - y0) or 1.0))

    for tick in np.linspace(y0, y1, 5):
        out.append(f'<line class="rule" x1="0" x2="100%" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        out.append(f'<text x="-6" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:.3g}</text>')
    for tick in (t for t in ticks(x0, x1) if what.x != "round" or t == int(t)):
        out.append(f'<text x="{percent(x(tick))}" y="{height + 15:g}" text-anchor="middle">{tick:g}</text>')
    out.append(f'<text class="axis" x="50%" y="{height + 31:g}" text-anchor="middle">{escape_text(what.x)}</text>')
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
        out.append(f'<polyline points="{points}" {stroke}><title>{escape_text(line.name)}</title></polyline>')
    out.append("</svg>")
    for number, line in numbered:
        colour = number % COLOURS + 1
        for a, b, s in zip(line.xs, line.ys, line.spread, strict=False):
            if s > 0:
                at = f'x1="{percent(x(a))}" x2="{percent(x(a))}" y1="{y(b - s):.1f}" y2="{y(b + s):.1f}"'
                out.append(f'<line class="whisker c{colour}" {at}/>')
        sizes = line.sizes()
        dotted = range(len(line.xs)) if what.dots else range(len(line.xs))[-1:]
        for i in dotted:
            radius = 2 + 6 * sizes[i] if what.dots else 3.5
            at = f'cx="{percent(x(line.xs[i]))}" cy="{y(line.ys[i]):.1f}"'
            out.append(
                f'<circle class="f{colour}" {at} r="{radius:.1f}">'
                f"<title>{escape_text(line.name)}: {line.xs[i]:g}, {line.ys[i]:.3g}</title></circle>"
            )
    return drawing


def standalone(parts: Sequence[Chart | Heatmap]) -> str:
    """The drawings below each other as an SVG file, in the colours of the light theme."""
    out: list[str] = []
    down = 0.0
    for what in parts:
        drawing = _curves(what, 160) if isinstance(what, Chart) else draw_cells(what, themes=("light",))
        keys = what.numbered() if isinstance(what, Chart) else ()
        out.append(f'<text x="8" y="{down + 18:g}" font-weight="bold">{escape_text(what.title)}</text>')
        down += 26 + drawing.above
        wide = FILE_WIDTH - drawing.left - 20
        out.append(f'<svg x="{drawing.left:g}" y="{down:g}" width="{wide:g}" height="{drawing.height:g}" '
                   f'overflow="visible">{"".join(drawing.parts)}</svg>')  # fmt: skip
        down += drawing.height + drawing.below + 6
        for number, line in keys:
            out.append(f'<line x1="38" x2="64" y1="{down:g}" y2="{down:g}" stroke-width="3" {_stroke(number)}/>')
            out.append(f'<text x="72" y="{down + 4:g}">{escape_text(line.name, 80)}</text>')
            down += 16
        down += 12
    root = f'<svg xmlns="http://www.w3.org/2000/svg" width="{FILE_WIDTH}" height="{max(down, 1):g}">'
    return f'{root}<style>{_file_style()}</style><rect width="100%" height="100%" fill="#fff"/>{"".join(out)}</svg>\n'


def _file_style() -> str:
    c = colours()
    lines = "".join(f".c{n}{{stroke:{c[f'line{n}']}}}.f{n}{{fill:{c[f'line{n}']}}}" for n in range(1, COLOURS + 1))
    return (
        f"text{{font:11px system-ui,sans-serif;fill:{c['text']}}}.axis{{fill:{c['muted']}}}.rule{{stroke:{c['line']}}}"
        f".curve{{fill:none;stroke-width:2.2;vector-effect:non-scaling-stroke}}.diagonal{{stroke:{c['muted']}}}"
        f".none{{fill:{c['hollow']}}}.mid{{fill:{c['middle']}}}.lo{{fill:{c['low']}}}.hi{{fill:{c['high']}}}"
        f".gap{{stroke:#fff;vector-effect:non-scaling-stroke}}.sharp{{image-rendering:pixelated}}"
        f".dot{{fill:none;stroke:{c['text']};stroke-linecap:round;vector-effect:non-scaling-stroke}}"
        f".dot.on{{stroke:#fff}}.mark{{fill:{c['text']};stroke:{c['text']}}}.mark.on{{fill:#fff;stroke:#fff}}"
        f".mark.ring{{fill:none}}{lines}"
    )
