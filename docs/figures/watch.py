"""The pictures of docs/watch.md: a study that really runs, photographed in headless Chromium while it does.

    python docs/figures/watch.py [SECONDS]

needs chromium and chromedriver, and the extras sim and watch. Runs `honestly bench quick` and `honestly watch` in a
temporary folder, waits until a third of the runs are done, and writes watch-study.png and watch-run.png beside this file.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))

from browser import Browser  # noqa: E402  (the driver of the tests)

HONESTLY = [sys.executable, "-m", "honestly"]


def photograph(browser: Browser, name: str) -> None:
    """A screenshot with few colours: small, and the page has few."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shot.png"
        browser.screenshot(path)
        buffer = io.BytesIO()
        Image.open(path).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    (HERE / name).write_bytes(buffer.getvalue())
    print(name, len(buffer.getvalue()) // 1024, "kB")


def main() -> None:
    patience = float(sys.argv[1]) if len(sys.argv) > 1 else 600
    with tempfile.TemporaryDirectory() as folder:
        bench = subprocess.Popen([*HONESTLY, "bench", "quick", "--out", folder, "--quiet"])
        watch = subprocess.Popen([*HONESTLY, "watch", folder, "--port", "0"], stdout=subprocess.PIPE, text=True)
        try:
            assert watch.stdout is not None
            url = watch.stdout.readline().split(" at ")[1].split()[0]
            with Browser() as browser:
                browser.size(1100, 760)
                browser.goto(url)
                browser.until(
                    "document.querySelectorAll('td[data-status=done]').length >= 9 "
                    "&& document.querySelector('td[data-status=running]')",
                    seconds=patience,
                )
                photograph(browser, "watch-study.png")
                browser.media(scheme="dark")
                browser.size(1100, 900)
                browser.script("document.querySelector('[data-status=running]').closest('tr')")
                # the Bayesian rule against the backdoor, at work or done
                cell = (
                    "[...document.querySelectorAll('.grid td')].find(c => /^Ours, .*(running|done)/.test(c.ariaLabel))"
                )
                browser.until(
                    f"{cell}?.dataset.status === 'done' || {cell}?.dataset.status === 'running'", seconds=patience
                )
                browser.script(f"{cell}.click()")
                browser.until("location.hash.length > 3", seconds=20)
                if "compare" in browser.script("return location.hash"):
                    browser.script("location.hash = '#/run/' + location.hash.split('/')[2].split(',')[0]")
                browser.until("document.querySelectorAll('canvas').length === 2", seconds=20)
                time.sleep(1)
                photograph(browser, "watch-run.png")
        finally:
            for process in (bench, watch):
                process.terminate()
                process.wait(60)


if __name__ == "__main__":
    main()
