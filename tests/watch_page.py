"""Helpers for tests of the page of `honestly watch` in a browser."""

from __future__ import annotations

import time
from collections.abc import Iterator

from browser import Browser
from study_being_run import FakeStudy
from watch_server import Watched

EVIL = "<script>window.hacked=1</script>"
LIVE = "document.getElementById('link').textContent === 'live'"


def show(browser: Browser, server: Watched, place: str = "") -> None:
    """Open a view in a fresh page, and wait until it is live."""
    browser.goto("about:blank")
    browser.goto(server.url + place)
    browser.until(LIVE)


def views(browser: Browser, server: Watched, study: FakeStudy, ours: str) -> Iterator[str]:
    """Overview, run and comparison, one after the other, each with all that can be unfolded."""
    for place in ("", f"#/run/{ours}", f"#/compare/{','.join([*study.ids()[:3], ours])}"):
        show(browser, server, place)
        browser.until("document.querySelector('main h1').textContent.length > 3")
        browser.script("for (const d of document.querySelectorAll('details')) d.open = true")
        time.sleep(0.3)  # the drawing follows
        yield place


def half_done(study: FakeStudy) -> str:
    """Create a study with finished, running, failed and pending runs, and return the id of the running one."""
    ids = study.ids()
    for id in ids[:3]:
        study.finish(id)
    ours = next(e.id for e in study.entries[3:] if e.cell["rule"] == "Ours")
    study.advance(ours, 4)
    study.advance(ids[4], 1)
    study.store.fail(ids[4], "Traceback:\n  File x\nRuntimeError: " + EVIL)
    return ours
