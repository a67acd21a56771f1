"""Every written page in real, headless Chromium: the story first, on a phone, without a network, for everybody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import shots
from browser import Browser

from honestly.show import svg

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]

#: Pages taller than this before their first fold are not read: four screens.
TALLEST = 4 * shots.HEIGHT
TOP = "return (document.querySelector(arguments[0])?.getBoundingClientRect().top ?? 0) + scrollY"
BOTTOM = "return [...document.querySelectorAll(arguments[0])].map((e) => e.getBoundingClientRect().bottom + scrollY)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return dict(shots.pages(tmp_path_factory.mktemp("pages"), list(shots.MAKERS)))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as found:
        yield found


def test_no_page_is_taller_than_four_screens_before_its_first_fold(pages: dict[str, str], browser: Browser) -> None:
    browser.size(1280, shots.HEIGHT)
    assert len(pages) >= 11
    for name, address in pages.items():
        browser.goto(address)
        assert browser.script("return document.querySelectorAll('details').length") > 0, name
        assert 0 < browser.script(TOP, "details") < TALLEST, name
        assert len(browser.script("return document.querySelector('.verdict').textContent")) > 20, name
        assert browser.script(TOP, ".verdict") < 150, name


def test_the_demo_tells_its_story_on_the_first_screen(pages: dict[str, str], browser: Browser) -> None:
    browser.size(1280, shots.HEIGHT)
    browser.goto(pages["demo"])
    titles = browser.script("return [...document.querySelectorAll('figcaption')].slice(0, 3).map((e) => e.textContent)")
    assert titles == ["Test accuracy", "Who really attacked", "Probability of being honest"]
    assert max(browser.script(BOTTOM, "main > .charts, main > .pair")) <= shots.HEIGHT
    # where nobody lies there is no map of liars: the run in question and FedAvg have one each
    every = browser.script("return [...document.querySelectorAll('figcaption')].map((e) => e.textContent)")
    assert every.count("Who really attacked") == 2


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_or_scrolls_sideways(pages: dict[str, str], browser: Browser, width: int) -> None:
    browser.size(width, shots.HEIGHT)
    for name, address in pages.items():
        browser.goto(address)
        browser.script("for (const d of document.querySelectorAll('details')) d.open = true;")
        assert browser.script("return document.documentElement.scrollWidth") == width, name
        outside = browser.script("""
            return [...document.querySelectorAll('.plot text, .plot circle')].filter((e) => !e.closest('.scroll'))
              .map((e) => [e.getBoundingClientRect(), e.outerHTML])
              .filter(([box]) => box.width && (box.left < 0 || box.right > innerWidth)).map(([, html]) => html)
        """)
        assert outside == [], name
        small = browser.script("""
            return [...document.querySelectorAll('.plot text')].filter((e) => e.checkVisibility())
              .map((e) => parseFloat(getComputedStyle(e).fontSize)).filter((size) => size < 11).length
        """)
        assert small == 0, name


def test_words_in_tables_are_not_broken(pages: dict[str, str], browser: Browser) -> None:
    """A cell whose text has no space is one line high."""
    browser.size(390, shots.HEIGHT)
    for name, address in pages.items():
        browser.goto(address)
        browser.script("for (const d of document.querySelectorAll('details')) d.open = true;")
        broken = browser.script("""
            return [...document.querySelectorAll('.list th, .list td:not(.long)')].filter((e) => {
              const words = e.textContent.trim();
              if (!words || /\\s/.test(words) || words.length > 30 || !e.checkVisibility()) return false;
              const range = document.createRange();
              range.selectNodeContents(e);
              return new Set([...range.getClientRects()].map((r) => Math.round(r.top))).size > 1;
            }).map((e) => e.textContent)
        """)
        assert broken == [], name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(pages: dict[str, str], browser: Browser, scheme: str) -> None:
    browser.size(1280, shots.HEIGHT)
    browser.media(scheme=scheme, reduced=True)
    for name, address in pages.items():
        browser.goto(address)
        assert shots.findings(browser) == [], name


def test_pages_ask_for_nothing_and_run_nothing(pages: dict[str, str], browser: Browser) -> None:
    browser.cdp("Emulation.setScriptExecutionDisabled", value=True)
    try:
        for name, address in pages.items():
            browser.requested()
            browser.goto(address)
            assert {url for url in browser.requested() if not url.startswith("data:")} == {address}, name
            assert browser.complaints() == [], name
    finally:
        browser.cdp("Emulation.setScriptExecutionDisabled", value=False)


def test_what_a_page_offers_to_save_is_what_it_says(pages: dict[str, str], browser: Browser) -> None:
    starts = {"csv": "run,", "json": "[{", "svg": "<svg ", "png": "\x89PNG"}
    browser.goto(pages["demo"])
    links = browser.script(
        "return [...document.querySelectorAll('.downloads a')]"
        ".map((a) => [a.download, atob(a.href.split(',')[1]).slice(0, 5)])"
    )
    assert {name.rpartition(".")[2] for name, _ in links} == set(starts)
    for name, start in links:
        assert start.startswith(starts[name.rpartition(".")[2]][:5])
    for name, address in pages.items():
        browser.goto(address)
        kinds = set(
            browser.script("return [...document.querySelectorAll('.downloads a')].map((a) => a.download.slice(-3))")
        )
        assert {"csv", "son", "svg", "png"} <= kinds, name


def test_a_page_of_many_runs_draws_its_png_on_click(pages: dict[str, str], browser: Browser) -> None:
    browser.complaints()
    browser.goto(next(address for address in pages.values() if "/report/runs/" in address))
    browser.script("""
        window.saved = new Promise((resolve) => {
            URL.createObjectURL = (blob) => { resolve(blob); return "#"; };
        });
        document.querySelector(".downloads a[download='figure.png']").click();
    """)
    size = browser.wait_for("window.saved.then(createImageBitmap).then((image) => [image.width, image.height])")
    assert size[0] == 2 * svg.FILE_WIDTH
    assert size[1] > 400
    inked = browser.wait_for("""window.saved.then(createImageBitmap).then((image) => {
        const pen = new OffscreenCanvas(image.width, image.height).getContext("2d");
        pen.drawImage(image, 0, 0);
        const colours = new Set(new Uint32Array(pen.getImageData(0, 0, image.width, image.height).data.buffer));
        return colours.size;
    })""")
    assert inked > 10
    assert browser.complaints() == []


def test_no_other_script_runs(pages: dict[str, str], browser: Browser, tmp_path: Path) -> None:
    """A page refuses a script that got into it, should the escaping ever fail."""
    for name in ("demo", "federation"):
        page = Path(unquote(urlsplit(pages[name]).path)).read_text(encoding="utf-8")
        evil = tmp_path / "evil.html"
        evil.write_text(page.replace("</main>", "<script>document.title = 'evil'</script></main>"), encoding="utf-8")
        browser.goto(evil.as_uri())
        assert browser.script("return document.title") != "evil"
        assert any("Content Security Policy" in text for text in browser.complaints())


def test_a_cell_says_its_value_by_pointer_and_in_words(pages: dict[str, str], browser: Browser) -> None:
    browser.goto(pages["demo"])
    titles = browser.script("return [...document.querySelectorAll('.cells title')].map((e) => e.textContent)")
    assert any(title.startswith("client 19, round") and "honesty" in title for title in titles)
    words = browser.script("return [...document.querySelectorAll('details')].map((d) => d.textContent).join(' ')")
    assert "attacked" in words
    assert "honesty 0." in words


def test_two_pages_of_the_same_run_are_the_same(tmp_path: Path) -> None:
    first, second = ({p.name: p.read_bytes() for p in shots.federation(tmp_path / name)} for name in "ab")
    assert first == second
