"""A real browser for tests: headless Chromium, driven through chromedriver by its own protocol (W3C WebDriver)."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
    "--no-default-browser-check", "--disable-extensions", "--force-device-scale-factor=1", "--hide-scrollbars",
)  # fmt: skip
MISSING = (
    "these tests need a browser: install Chromium and its driver (Debian: apt-get install chromium chromium-driver), "
    "or run the others with -m 'not browser'"
)
KEYS = {
    "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Enter": 13, "Home": 36, "End": 35,
}  # fmt: skip


class Browser:
    """One browser with a profile of its own; `with Browser() as b:` ends it and its driver."""

    def __init__(self) -> None:
        self.driver = shutil.which("chromedriver")
        names = ("chromium", "chromium-browser", "google-chrome")
        self.chromium = next((path for name in names if (path := shutil.which(name))), None)
        if self.driver is None or self.chromium is None:
            raise RuntimeError(MISSING)

    def __enter__(self) -> Browser:
        assert self.driver is not None
        self.profile = tempfile.TemporaryDirectory(prefix="honestly-browser-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [self.driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        for text in self.process.stdout:
            if found := re.search(r"started successfully on port (\d+)", text):
                self.url = f"http://127.0.0.1:{found[1]}"
                break
        options = {"args": [*FLAGS, f"--user-data-dir={self.profile.name}"], "binary": self.chromium}
        capabilities = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": capabilities}})
        self.url += f"/session/{made['sessionId']}"
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self.process.terminate()
            self.process.wait(10)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.profile.cleanup()

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            with error:
                told = json.load(error)["value"]
            raise RuntimeError(f"{told['error']}: {told['message']}") from None

    def cdp(self, command: str, **parameters: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def goto(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def script(self, body: str, *values: Any) -> Any:
        """Run JavaScript and return its result."""
        return self._call("POST", "/execute/sync", {"script": body, "args": list(values)})

    def wait_for(self, promise: str, *values: Any) -> Any:
        """Wait for a JavaScript promise and return its result; `given` are the arguments."""
        body = f"const given = [...arguments]; const done = given.pop(); ({promise}).then(done);"
        return self._call("POST", "/execute/async", {"script": body, "args": list(values)})

    def until(self, condition: str, *values: Any, seconds: float = 20) -> Any:
        """Wait until an expression of JavaScript is true."""
        end = time.monotonic() + seconds
        while True:
            found = self.script(f"return ({condition})", *values)
            if found:
                return found
            if time.monotonic() > end:
                page = self.script("return document.body.innerText")
                raise AssertionError(f"never became true: {condition}\n{page[:2000]}")
            time.sleep(0.05)

    def press(self, *keys: str) -> None:
        """Press keys one after the other, as a user does; `shift+Tab` holds shift."""
        for key in keys:
            modifiers, _, name = key.rpartition("+")
            code = KEYS.get(name, 0)
            text = {"text": "\r"} if name == "Enter" else {} if name in KEYS else {"text": name}
            common = {"key": name, "code": name, "windowsVirtualKeyCode": code, "modifiers": 8 if modifiers else 0}
            self.cdp("Input.dispatchKeyEvent", type="keyDown", **common, **text)
            self.cdp("Input.dispatchKeyEvent", type="keyUp", **common)

    def size(self, width: int, height: int) -> None:
        self.cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def media(self, *, scheme: str = "light", reduced: bool = False) -> None:
        """Set the preferred colour scheme and motion."""
        motion = "reduce" if reduced else "no-preference"
        features = [
            {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": motion}
        ]  # fmt: skip
        self.cdp("Emulation.setEmulatedMedia", features=features)

    def screenshot(self, path: Path, *, whole: bool = False) -> None:
        found = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What was logged since the last call: "browser" for the console, "performance" for the network."""
        return self._call("POST", "/se/log", {"type": kind})

    def requested(self) -> list[str]:
        """The addresses that the browser has asked for since the last call."""
        messages = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """Errors and warnings of the console: a policy that was broken, a script that failed."""
        return [entry["message"] for entry in self.log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def tab(self, url: str) -> str:
        """Open a page in a new tab, bring it to the front and return its handle."""
        handle = self._call("POST", "/window/new", {"type": "tab"})["handle"]
        self.front(handle)
        self.goto(url)
        return handle

    def front(self, handle: str) -> None:
        """Bring a tab to the front; the others are then hidden."""
        self._call("POST", "/window", {"handle": handle})
        self.cdp("Page.bringToFront")

    def close_tab(self) -> None:
        self._call("DELETE", "/window")

    def tabs(self) -> list[str]:
        return self._call("GET", "/window/handles")
