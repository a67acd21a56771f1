"""The page in real, headless Chromium: it shows what happens while it happens."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from browser import Browser
from study_being_run import FakeStudy
from watch_page import EVIL, LIVE, half_done, show, views
from watch_server import Watched, watched

import honestly
from honestly.federation.history import History
from honestly.federation.record import Round

pytestmark = [pytest.mark.browser, pytest.mark.slow]

WORSE = '"><img src=x onerror=window.hacked=1>'


def test_a_study_fills_in_while_it_is_watched(browser: Browser, server: Watched, study: FakeStudy) -> None:
    show(browser, server)
    browser.until("document.querySelector('.headline')?.textContent.startsWith('0 of 12 runs done')")
    assert browser.script("return document.querySelector('main h1').textContent") == "invented"
    first = study.ids()[0]
    study.advance(first, 3)
    browser.until("document.querySelectorAll('td[data-status=running]').length === 1")
    browser.until("document.querySelector('.runs li').textContent.includes('round 3 of 10')")
    study.finish(first)
    browser.until("document.querySelectorAll('td[data-status=done]').length === 1")
    cell = browser.script(
        "const c = document.querySelector('td[data-status=done]'); return [c.textContent, c.getAttribute('aria-label')]"
    )
    assert cell == ["0.81", "FedAvg, sign_flip, accuracy, last round 0.814, done"]
    assert browser.script("return document.title").startswith("8 % · invented")
    assert browser.script("return document.querySelector('.meter').getAttribute('aria-valuenow')") == "1"
    assert {url for url in browser.requested() if not url.startswith(server.url)} <= {"about:blank"}


def save_all(browser: Browser) -> str:
    """Click every download of the view, check their kinds, and return the CSV file."""
    # visible: before the rounds have come, there is nothing to save
    browser.until("[...document.querySelectorAll('.downloads button')].filter((b) => b.offsetParent).length === 4")
    blobs = "window.saved = []; URL.createObjectURL = (b) => { window.saved.push(b); return 'about:blank'; };"
    browser.script(blobs + "HTMLAnchorElement.prototype.click = () => {};")
    browser.script("for (const b of document.querySelectorAll('.downloads button')) b.click();")
    browser.until("window.saved.length === 4")
    types = browser.script("return window.saved.map((b) => b.type)")
    assert sorted(types) == ["application/json", "image/png", "image/svg+xml", "text/csv"]
    return browser.wait_for("window.saved.find((b) => b.type === 'text/csv').text()")


def test_the_overview_can_be_saved(browser: Browser, server: Watched, study: FakeStudy) -> None:
    study.finish(study.ids()[0])
    browser.goto(server.url)
    browser.until("document.querySelector('td[data-status=done]')")
    table = save_all(browser).splitlines()
    assert table[0].startswith("run,")
    assert table[0].endswith(",status,rounds,of,accuracy,mean20,asr")
    assert len(table) == 1 + len(study.ids())
    drawing = browser.wait_for("window.saved.find((b) => b.type === 'image/svg+xml').text()")
    assert "Rules by settings" in drawing
    # an image of the server with colours: its style is not blocked
    pixels = browser.wait_for(
        "createImageBitmap(window.saved.find((b) => b.type === 'image/png')).then((image) => {"
        "const c = new OffscreenCanvas(image.width, image.height); const p = c.getContext('2d');"
        "p.drawImage(image, 0, 0);"
        "return [...new Set(new Uint32Array(p.getImageData(0, 0, c.width, c.height).data.buffer))].length; })"
    )
    assert pixels > 20


def test_a_comparison_can_be_saved(browser: Browser, server: Watched, study: FakeStudy) -> None:
    first, second = study.ids()[:2]
    study.finish(first)
    study.finish(second)
    browser.goto(f"{server.url}#/compare/{first},{second}")
    browser.until("document.querySelectorAll('.heat svg.plot').length >= 2")
    table = save_all(browser).splitlines()
    assert table[0] == "run,round,accuracy,asr,attacked,accused,excluded"
    assert len(table) == 1 + 2 * 10


def test_a_run_can_be_saved(browser: Browser, server: Watched, study: FakeStudy) -> None:
    first = study.ids()[0]
    study.finish(first)
    browser.goto(f"{server.url}#/run/{first}")
    table = save_all(browser)
    assert table.splitlines()[0] == "round,accuracy,asr,attacked,accused,excluded"
    assert len(table.splitlines()) == 1 + 10
    hostile = {"head": {"shown": [0], "names": ['=1+1,"x"']}, "rounds": [{"round": 1, "attacked": [0]}]}
    written = browser.wait_for("import('/static/save.js').then((m) => m.csv(given[0]))", hostile)
    assert written.splitlines()[1] == """1,,,"'=1+1,""x""\",,"""


def test_a_first_round_is_not_coloured_as_bad(browser: Browser, server: Watched, study: FakeStudy) -> None:
    show(browser, server)
    first = study.ids()[0]
    study.advance(first, 1)
    colour = "return document.querySelector('td[data-status=running]').style.background"
    browser.until("document.querySelector('td[data-status=running] .value')?.textContent.startsWith('0.')")
    assert browser.script(colour) == ""
    study.advance(first, 2)
    browser.until("document.querySelector('td[data-status=running]').style.background")
    options = "return [...document.querySelector('select').options].map((o) => o.value)"
    assert browser.script(options)[0] == "accuracy"
    assert "mean20" not in browser.script(options)  # nothing has 20 rounds


def test_one_run_with_its_curves_and_heatmaps(browser: Browser, server: Watched, study: FakeStudy) -> None:
    ours = half_done(study)
    show(browser, server, f"#/run/{ours}")
    points = "document.querySelector('polyline')?.getAttribute('points').split(' ').length"
    browser.until(f"{points} === 4")
    browser.until("document.querySelectorAll('.heat svg.plot[tabindex]').length === 2")
    label = "document.querySelectorAll('.heat svg.plot')[1].getAttribute('aria-label')"
    assert "4 rounds" in browser.script(f"return {label}")
    colours = (
        "fetch(document.querySelectorAll('.heat image')[1].getAttribute('href')).then((r) => r.blob())"
        ".then(createImageBitmap).then((image) => {"
        "const all = new OffscreenCanvas(image.width, image.height);"
        "const pen = all.getContext('2d', {willReadFrequently: true}); pen.drawImage(image, 0, 0);"
        "return [0, 9].map((t) => [...pen.getImageData(t, 0, 1, 1).data].join()); })"
    )
    filled, empty = browser.wait_for(colours)
    assert filled != empty  # rounds to come are empty
    study.advance(ours, 6)
    browser.until(f"{points} === 10 && {label}.includes('10 rounds')")
    assert browser.wait_for(colours)[1] != empty
    table = browser.script("return [...document.querySelectorAll('tbody tr')].map(r => r.innerText.split('\\t'))")
    assert [row[:5] for row in table] == [["4", "10", "10", "0", "0"], ["5", "10", "10", "0", "0"]]


def test_several_runs_compared(browser: Browser, server: Watched, study: FakeStudy) -> None:
    half_done(study)
    show(browser, server)
    browser.until("document.querySelector('details.all')")
    browser.script("document.querySelector('details.all').open = true")
    browser.until("document.querySelectorAll('.all tbody tr').length === 12")
    browser.script("for (const b of [...document.querySelectorAll('.all input[type=checkbox]')].slice(0, 3)) b.click()")
    assert browser.script("return document.getElementById('to-compare').textContent") == "Compare (3)"
    browser.script("document.getElementById('to-compare').click()")
    browser.until("document.querySelectorAll('figure.chart:not([hidden]) polyline').length === 3")
    browser.until("document.querySelectorAll('.several section').length === 3")
    browser.until("[...document.querySelectorAll('polyline')].every(p => p.getAttribute('points').length > 50)")
    browser.script("document.querySelector('tbody button').click()")
    browser.until("document.querySelectorAll('tbody tr').length === 2")


def test_names_and_messages_of_strangers_stay_text(browser: Browser, tmp_path: Path) -> None:
    backwards = "\u202eevil"
    study = FakeStudy(tmp_path / "s", rules=(EVIL, "Ours"), attacks=(WORSE, "x"), more={WORSE: (EVIL, backwards)})
    study.store.set_meta(name=EVIL)
    for id in study.ids()[:3]:
        study.finish(id)
    study.advance(study.ids()[3], 2)
    study.store.fail(study.ids()[3], f"{WORSE}\n{EVIL}")
    with watched(tmp_path / "s", interval=0.1) as server:
        for _ in views(browser, server, study, study.ids()[3]):
            assert_harmless(browser)
            assert EVIL in browser.script("return document.querySelector('main').textContent")
        browser.goto("about:blank")  # nothing is under way when the server ends
    study.close()
    history = History(tmp_path / "h")
    clients = (EVIL, WORSE, backwards, "d" * 5000)
    out = dict.fromkeys(clients, 0.9) | {EVIL: 0.1}
    history.add(Round(1, clients, out, None, {WORSE: EVIL}, True, WORSE, True, {"accuracy": 0.5}))
    history.write()
    with watched(tmp_path / "h", interval=0.1) as server:
        show(browser, server)
        browser.until("document.querySelectorAll('tbody tr').length === 2")
        text = browser.script("return document.querySelector('main').textContent")
        assert EVIL in text
        assert WORSE in text
        assert_harmless(browser)


def assert_harmless(browser: Browser) -> None:
    elements = "document.querySelectorAll('main script, main img, main iframe').length"
    assert browser.script(f"return [window.hacked ?? null, {elements}]") == [None, 0]


def test_the_server_ends_and_comes_back(browser: Browser, study: FakeStudy, tmp_path: Path) -> None:
    first = study.ids()[0]
    lost = "document.getElementById('link').textContent.startsWith('connection lost')"
    with watched(tmp_path / "study", interval=0.1) as server:
        show(browser, server, f"#/run/{first}")
        port = server.port
    browser.until(lost)
    study.advance(first, 2)
    with watched(tmp_path / "study", interval=0.1, port=port):
        browser.until(LIVE)
        browser.until("document.querySelector('polyline')?.getAttribute('points').split(' ').length === 2")
    browser.until(lost)
    browser.goto("about:blank")
    browser.log("browser")  # it complains about the refused connections, as it should


def test_a_missing_folder_appears_and_vanishes(browser: Browser, tmp_path: Path) -> None:
    folder = tmp_path / "later"
    problem = "document.getElementById('problem')"
    with watched(folder, interval=0.1) as server:
        show(browser, server)
        browser.until(f"{problem}.textContent.includes('not there yet') && !{problem}.hidden")
        study = FakeStudy(folder)
        browser.until(f"{problem}.hidden && document.querySelectorAll('.grid td').length === 6")
        study.close()
        shutil.rmtree(folder)
        browser.until(f"!{problem}.hidden")
        assert browser.script("return document.querySelectorAll('.grid td').length") == 6


def test_ten_tabs_at_once(browser: Browser, server: Watched, study: FakeStudy) -> None:
    """A browser opens six connections to a server: hidden tabs must give theirs up."""
    first = browser.tabs()[0]
    opened = [browser.tab(server.url) for _ in range(10)]
    done = "document.querySelectorAll('td[data-status=done]').length === 1"
    try:
        for handle in opened:
            browser.front(handle)
            browser.until(LIVE + " && document.querySelectorAll('.grid td').length === 12")
        study.finish(study.ids()[0])
        browser.until(done)
        browser.front(opened[0])
        browser.until(done)
    finally:
        for handle in opened:
            browser.front(handle)
            browser.close_tab()
        browser.front(first)


def test_a_huge_study_is_shown_and_kept_up(browser: Browser, tmp_path: Path) -> None:
    study = FakeStudy(
        tmp_path, rounds=100, clients=20, rules=("FedAvg", "Median", "Krum", "Ours"), seeds=3,
        more={"dataset": ("mnist", "fmnist"), "config": (1, 2, 3), "alpha": (0.1, 0.25, 0.5, 1.0, 10.0)},
    )  # fmt: skip
    assert len(study.ids()) == 720
    for id in study.ids()[:100]:
        study.finish(id)
    with watched(tmp_path, interval=0.1) as server:
        began = time.monotonic()
        show(browser, server)
        browser.until("document.querySelectorAll('.grid td').length === 240")
        assert time.monotonic() - began < 8
        study.advance(study.ids()[-1], 3)
        browser.until("document.querySelectorAll('td[data-status=running]').length === 1", seconds=3)
    study.close()


def test_a_running_federation(browser: Browser, tmp_path: Path) -> None:
    path = os.pathsep.join([str(Path(honestly.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    words = ["rounds=5", "clients=10", "attack=sign_flip", "malicious=0.4", "seed=3", "--quiet"]
    headline = "document.querySelector('.headline')?.textContent"
    with watched(tmp_path / "run", interval=0.1) as server:
        show(browser, server)
        process = subprocess.Popen(
            [sys.executable, "-m", "honestly", "simulate", *words, "--out", str(tmp_path / "run")],
            env={**os.environ, "PYTHONPATH": path},
        )
        try:
            browser.until(f"{headline}?.match(/running, round [1-4] of 5/)", seconds=60)
            browser.until(f"{headline}.startsWith('done, round 5 of 5')", seconds=60)
        finally:
            process.terminate()
            process.wait(20)
        browser.until("document.querySelectorAll('.heat svg.plot').length >= 2")
        records = [json.loads(line) for line in (tmp_path / "run/rounds.jsonl").read_text().splitlines()]
        shown = browser.script("return document.querySelector('.legend b').textContent")
        assert shown == f"{records[-1]['accuracy']:.3f}"
