"""The page in real, headless Chromium: by keyboard, for a screen reader, in light and dark, on a phone."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from browser import Browser
from study_being_run import FakeStudy
from watch_page import half_done, show, views
from watch_server import Watched, watched

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# Every visible text against the background that lies behind it, by WCAG's formula.
CONTRAST = """
const rgb = (c) => (c.match(/[\\d.]+/g) ?? []).map(Number);
const lum = ([r, g, b]) => { const f = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b); };
const paper = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
  if (c.length === 3 || c[3] > 0) return c; } return [255, 255, 255]; };
const bad = []; let n = 0;
const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walk.nextNode()) {
  const e = walk.currentNode.parentElement;
  if (!walk.currentNode.textContent.trim() || !e.checkVisibility() || e.closest('.unseen, .skip')) continue;
  const s = getComputedStyle(e);
  const ink = rgb(e.namespaceURI.endsWith('svg') ? s.fill : s.color);
  const [a, b] = [lum(ink), lum(paper(e))].sort((x, y) => x - y);
  n += 1;
  if ((b + 0.05) / (a + 0.05) < 4.5) bad.push([walk.currentNode.textContent, s.color, paper(e).join()]);
}
return [n, bad];
"""


def test_the_whole_page_works_by_keyboard(browser: Browser, server: Watched, study: FakeStudy) -> None:
    ours = half_done(study)
    show(browser, server)
    browser.until("document.querySelectorAll('td[data-status=done]').length === 3")
    active = "const e = document.activeElement; return e.id || e.getAttribute('role') || e.tagName"
    ring = "const s = getComputedStyle(document.activeElement); return [s.outlineStyle, parseFloat(s.outlineWidth)]"
    order: list[str] = []
    while len(order) < 30 and order[-1:] != ["gridcell"]:
        browser.press("Tab")
        order.append(browser.script(active))
        style, width = browser.script(ring)
        assert style != "none", order
        assert width >= 2
    assert order[:3] == ["A", "to-overview", "to-compare"]
    assert order[-1] == "gridcell"
    name = "return document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
    assert browser.script(name).startswith("FedAvg, sign_flip")
    browser.press("ArrowDown")
    assert browser.script(name).startswith("Median, sign_flip")
    browser.press("ArrowRight")
    assert browser.script(name).startswith("Median, backdoor")
    browser.press("ArrowRight")  # the end of the row
    assert browser.script(name).startswith("Median, backdoor")
    browser.press("ArrowUp", "ArrowUp")
    assert browser.script(name) == "backdoor"
    browser.press("ArrowDown", "ArrowDown", "ArrowDown")
    assert browser.script(name).startswith("Ours, backdoor")
    study.advance(ours, 1)  # what comes in must not take the focus away
    browser.until("document.querySelector('.runs').textContent.includes('round 5 of 10')")
    assert browser.script(name).startswith("Ours, backdoor")
    browser.press("Enter")
    browser.until("location.hash.startsWith('#/run/')")
    browser.until("document.activeElement.id === 'main'")


def test_a_heatmap_by_keyboard(browser: Browser, server: Watched, study: FakeStudy) -> None:
    ours = half_done(study)
    show(browser, server, f"#/run/{ours}")
    browser.until("document.querySelector('.heat svg.plot[tabindex]') && document.querySelector('polyline')")
    kind = "return document.activeElement.tagName"
    for _ in range(15):
        browser.press("Tab")
        if browser.script(kind) == "svg":
            break
    told = "return document.querySelector('.readout').textContent"
    browser.press("ArrowRight", "Home", "ArrowDown")
    assert browser.script(told).startswith("client 1, round 1, honesty 0.9")
    assert browser.script(told).endswith(", behaved")
    browser.press(*["ArrowDown"] * 9)
    assert browser.script(told).startswith("client 5, round 1, honesty 0.")
    assert browser.script(told).endswith("attacked, accused")
    browser.press("End")
    assert browser.script(told).startswith("client 5, round 4")
    study.advance(ours, 1)  # a new drawing must not take the focus away
    browser.until("document.activeElement.getAttribute('aria-label')?.includes('5 rounds')")
    browser.press("ArrowRight")
    assert browser.script(told).startswith("client 5, round 5")
    place = (
        "const c = document.querySelector('.heat .cursor'); return ['x', 'y'].map((n) => c[n].baseVal.valueAsString)"
    )
    assert [float(share.rstrip("%")) for share in browser.script(place)] == pytest.approx([40, 500 / 6], abs=0.01)
    browser.press("shift+Tab")
    assert browser.script(kind) != "svg"


def test_a_screen_reader_finds_landmarks_and_names(browser: Browser, server: Watched, study: FakeStudy) -> None:
    ours = half_done(study)
    for _ in views(browser, server, study, ours):
        nodes = [n for n in browser.cdp("Accessibility.getFullAXTree")["nodes"] if not n.get("ignored")]
        roles = [n["role"]["value"] for n in nodes]
        assert {"banner", "navigation", "main"} <= set(roles)
        assert roles.count("main") == 1
        focusable = [n for n in nodes if _property(n, "focusable")]
        assert len(focusable) > 5
        unnamed = [n["role"]["value"] for n in focusable if not n.get("name", {}).get("value")]
        assert set(unnamed) <= {"generic", "main", "RootWebArea"}
        assert browser.script("return document.querySelectorAll('h1').length") == 1
        levels = browser.script("return [...document.querySelectorAll('h1, h2, h3')].map(h => +h.tagName[1])")
        assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    show(browser, server)
    browser.until("document.getElementById('live').textContent.startsWith('3 of 12 runs done, 1 failed')")


def _property(node: dict[str, Any], name: str) -> Any:
    return next((p["value"].get("value") for p in node.get("properties", []) if p["name"] == name), None)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_is_readable(browser: Browser, server: Watched, study: FakeStudy, scheme: str) -> None:
    ours = half_done(study)
    browser.media(scheme=scheme, reduced=True)
    for _ in views(browser, server, study, ours):
        seen, bad = browser.script(CONTRAST)
        assert seen > 15
        assert bad == []
    shades = browser.wait_for(
        "import('/static/colour.js').then((m) => Array.from({length: 101}, (_, i) => m.scale(i / 100)))"
    )
    inks = browser.wait_for("import('/static/colour.js').then((m) => given[0].map((c) => m.ink(c)))", shades)
    for rgb, ink in zip(shades, inks, strict=True):
        a, b = sorted((_luminance(rgb), 1.0 if ink == "#fff" else 0.0))
        assert (b + 0.05) / (a + 0.05) >= 4.5


def _luminance(rgb: list[int]) -> float:
    r, g, b = (c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in rgb)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def test_dark_is_dark_and_motion_can_be_off(browser: Browser, server: Watched) -> None:
    paper = "return getComputedStyle(document.body).backgroundColor"
    moving = (
        "return [...document.querySelectorAll('*')]"
        ".filter((e) => parseFloat(getComputedStyle(e).transitionDuration) > 0).length"
    )
    show(browser, server)
    browser.until("document.querySelector('.meter')")
    assert browser.script(paper) == "rgb(255, 255, 255)"
    assert browser.script(moving) > 0
    browser.media(scheme="dark", reduced=True)
    assert browser.script(paper) == "rgb(15, 19, 24)"
    assert browser.script(moving) == 0


@pytest.mark.parametrize("width", [360, 390])
def test_a_phone_does_not_scroll_sideways(browser: Browser, tmp_path: Path, width: int) -> None:
    long = "an_attack_with_a_name_that_does_not_end_" * 3
    study = FakeStudy(tmp_path / "s", attacks=(long, *(f"attack{i}" for i in range(7))), more={"alpha": (0.5, 1.0)})
    ours = half_done(study)
    study.store.fail(study.ids()[5], "x" * 3000)
    browser.size(width, 800)
    with watched(tmp_path / "s", interval=0.1) as server:
        for place in views(browser, server, study, ours):
            found = browser.script("return [document.documentElement.scrollWidth, innerWidth, visualViewport.scale]")
            assert found == [width, width, 1], place
        browser.goto("about:blank")  # nothing is under way when the server ends
    study.close()
