"""The pictures of docs/how-to/watch.md: a study and a federation at work, photographed in headless Chromium.

    python docs/figures/watch.py

needs chromium and chromedriver, and the extras sim and watch; takes some minutes. Writes watch-study.png, in light, and
watch-run.png, in dark.
"""

from __future__ import annotations

import io
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from browser import Browser

HERE = Path(__file__).parent
HONESTLY = [sys.executable, "-m", "honestly"]
PATIENCE = 1500
FEDERATION = ("rounds=25", "clients=10", "rule=bayesian", "attack=sign_flip", "malicious=0.4", "dynamic=true", "seed=5")


@contextmanager
def at_work(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A command at work on a folder, and the address at which it is watched."""
    work = subprocess.Popen([*HONESTLY, *words, "--out", str(folder), "--quiet"])
    watch = subprocess.Popen([*HONESTLY, "watch", str(folder), "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        assert watch.stdout is not None
        yield work, watch.stdout.readline().split(" at ")[1].split()[0]
    finally:
        work.send_signal(signal.SIGCONT)
        for process in (work, watch):
            process.terminate()
            process.wait(60)


def until_round(browser: Browser, work: subprocess.Popen[bytes], number: int) -> None:
    """Let a run work in short spells until the page shows this round, and halt it there."""
    while not browser.script(
        f"return Number(/round (\\d+) of/.exec(document.querySelector('.headline')?.textContent)?.[1]) >= {number}"
    ):
        work.send_signal(signal.SIGCONT)
        time.sleep(0.05)
        work.send_signal(signal.SIGSTOP)
        time.sleep(0.2)


def photograph(browser: Browser, path: Path) -> None:
    """A screenshot with few colours: small, and the page has few."""
    time.sleep(1)
    browser.screenshot(path)
    buffer = io.BytesIO()
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    path.write_bytes(buffer.getvalue())
    print(path.name, len(buffer.getvalue()) // 1024, "kB")


def main() -> None:
    with tempfile.TemporaryDirectory() as name, Browser() as browser:
        with at_work(Path(name) / "run", "simulate", *FEDERATION) as (work, url):
            browser.media(scheme="dark", reduced=True)
            browser.size(1000, 860)
            browser.goto(url)
            until_round(browser, work, 15)
            photograph(browser, HERE / "watch-run.png")
        with at_work(Path(name) / "quick", "bench", "quick") as (_, url):
            browser.media(scheme="light", reduced=True)
            browser.size(1000, 720)
            browser.goto(url)
            browser.until(
                "document.querySelectorAll('td[data-status=done]').length >= 13 "
                "&& document.querySelector('td[data-status=running]')",
                seconds=PATIENCE,
            )
            photograph(browser, HERE / "watch-study.png")


if __name__ == "__main__":
    main()
