"""The page's own files: readable colours, nothing from outside, no text that becomes markup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from honestly.show.live.app import STATIC
from honestly.show.palette import STYLE

FILES = [*sorted(STATIC.iterdir()), STYLE]
TEXT = ("text", "muted", "link", "bad")
BACKGROUNDS = ("bg", "panel", "alert")


def themes() -> dict[str, dict[str, str]]:
    """The colours of both themes, by name."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE.read_text(), re.DOTALL)[:2]
    light, dark = (dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", block)) for block in blocks)
    assert light.keys() == dark.keys()
    return {"light": light, "dark": dark}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    dark, bright = sorted((luminance(one), luminance(other)))
    return (bright + 0.05) / (dark + 0.05)


def test_contrast_is_measured_as_wcag_does() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("ink", TEXT)
@pytest.mark.parametrize("paper", BACKGROUNDS)
def test_text_is_readable_on_every_background(theme: str, ink: str, paper: str) -> None:
    colours = themes()[theme]
    assert contrast(colours[ink], colours[paper]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("mark", ["good", "bad", "busy", "muted", "link"])
def test_marks_and_the_focus_ring_stand_out(theme: str, mark: str) -> None:
    colours = themes()[theme]
    assert contrast(colours[mark], colours["bg"]) >= 3
    assert contrast(colours[mark], colours["hollow"]) >= 3


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_nothing_comes_from_outside(path: Path) -> None:
    addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[^\s\"')]*", path.read_text()))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert "@import" not in path.read_text()


@pytest.mark.parametrize("path", [p for p in FILES if p.suffix == ".js"], ids=lambda p: p.name)
def test_text_never_becomes_markup_or_code(path: Path) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc"
    assert not re.findall(forbidden, path.read_text())


def test_the_page_has_no_inline_script_or_style() -> None:
    page = (STATIC / "index.html").read_text()
    assert re.findall(r"<script[^>]*>(.*?)</script>", page) == [""]
    assert "style=" not in page
    assert not re.search(r"\son\w+=", page)


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in FILES) < 85_000
    assert max(len(path.read_text().splitlines()) for path in FILES) < 300
