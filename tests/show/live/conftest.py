"""A browser, a study and a server for the tests that look at the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser
from study_being_run import FakeStudy
from watch_server import Watched, watched


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser() as found:
        yield found


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser with a clean slate; a complaint in its console is a failure."""
    chromium.media()
    chromium.size(1280, 900)
    chromium.goto("about:blank")
    chromium.log("browser")
    chromium.requested()
    yield chromium
    assert chromium.complaints() == []


@pytest.fixture
def study(tmp_path: Path) -> Iterator[FakeStudy]:
    made = FakeStudy(tmp_path / "study", more={"alpha": (0.5, 1.0)})
    yield made
    made.close()


@pytest.fixture
def server(study: FakeStudy, tmp_path: Path, browser: Browser) -> Iterator[Watched]:
    with watched(tmp_path / "study", interval=0.1, heartbeat=1) as found:
        yield found
        browser.goto("about:blank")  # a drawing that is under way would be a complaint about the lost connection
