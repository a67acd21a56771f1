"""The colours of all pages and pictures, read from the one stylesheet."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

STYLE = Path(__file__).with_name("style.css")


@cache
def stylesheet() -> str:
    """The text of the stylesheet."""
    return STYLE.read_text(encoding="utf-8")


@cache
def colours(theme: str = "light") -> dict[str, str]:
    """Name -> `#rrggbb` of a theme, "light" or "dark".

    >>> colours()["good"] == colours("dark")["good"]
    False
    """
    light, dark = re.findall(r":root \{(.*?)\}", stylesheet(), re.DOTALL)[:2]
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", light if theme == "light" else dark))


def line_colour(number: int) -> str:
    """The colour of the n-th curve in a file, on white."""
    return colours()[f"line{number % 6 + 1}"]


def shade(value: float, theme: str = "light") -> str:
    """Orange at 0, pale at one half, blue at 1.

    >>> shade(0) == colours()["low"], shade(0.5) == colours()["middle"], shade(1) == colours()["high"]
    (True, True, True)
    """
    names = colours(theme)
    stops = [[int(names[name][i : i + 2], 16) for i in (1, 3, 5)] for name in ("low", "middle", "high")]
    at = min(max(value, 0.0), 1.0) * 2
    i = min(int(at), 1)
    mixed = (round(a + (at - i) * (b - a)) for a, b in zip(stops[i], stops[i + 1], strict=True))
    return "#" + "".join(f"{c:02x}" for c in mixed)
