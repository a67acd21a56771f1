"""Pages from templates: everything that a template shows is escaped, printable and bounded in length."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from honestly._version import __version__
from honestly.show import palette, svg
from honestly.show.text import shorten

#: The most characters of one text in a page: names and messages are untrusted.
MOST, MOST_WHOLE = 2000, 50_000


def plain(value: Any) -> Any:
    """Convert a value for a template: drawings are unchanged, all other text is made printable and bounded."""
    if value is None or isinstance(value, Markup | int | float):
        return "" if value is None else value
    return shorten(value, MOST)


def whole(value: Any) -> Markup:
    """A long text, such as the settings of a run."""
    return escape(shorten(value, MOST_WHOLE))


@cache
def script() -> str:
    """The only script of a page: links that draw its SVG files as PNG files, where the page contains none."""
    folder = Path(__file__).parent
    files = (folder / "live" / "static" / "picture.js", folder / "templates" / "png_links.js")
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


def policy() -> str:
    """What a page may load and run: its own styles and drawings, and that script, recognised by its hash."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


@cache
def environment() -> Environment:
    """The templates, with the drawings as functions."""
    templates: Any = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")), autoescape=True, undefined=StrictUndefined,
        finalize=plain, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    templates.filters["short"] = shorten
    templates.filters["whole"] = whole
    templates.globals.update(
        chart=svg.chart, heatmap=svg.heatmap, ramp_key=svg.ramp_key, style=Markup(palette.stylesheet()),
        version=__version__, script=Markup(script()), policy=policy(),
    )  # fmt: skip
    return templates


def render(template: str, /, **values: Any) -> str:
    """A whole page."""
    return environment().get_template(template).render(**values)


def part(macro: str, /, *values: Any, **named: Any) -> Markup:
    """A part of a page, by the name of its macro in `parts.html`."""
    module: Any = environment().get_template("parts.html").module
    return Markup(getattr(module, macro)(*values, **named))


def join(*parts: Markup | str) -> Markup:
    """Concatenate parts; anything else is escaped as text."""
    return Markup("").join(parts)
