"""A real Flower federation on loopback: SuperLink and SuperNodes as processes, stopped by pid in bounded time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import honestly

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(ready: Any, seconds: float, what: str) -> Any:
    """What `ready()` returns once it is true; TimeoutError after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := ready():
            return found
        time.sleep(0.2)
    raise TimeoutError(f"{what} took more than {seconds} s")


@dataclass
class Process:
    """A process in a group of its own, with its output in a file."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text(errors="replace"))

    def stop(self, *, at_once: bool = False) -> None:
        """Send SIGTERM, wait ten seconds, then send SIGKILL to what is left of its group (the apps that it started)."""
        if not at_once and self.popen.poll() is None:
            self.popen.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.popen.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait(10)


@dataclass
class Flower:
    """One SuperLink and its SuperNodes."""

    folder: Path
    port: int = field(default_factory=free_port)
    processes: list[Process] = field(default_factory=list)
    connection: str = "test"

    @property
    def environment(self) -> dict[str, str]:
        source = str(Path(honestly.__file__).resolve().parents[1])
        return os.environ | {
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH", "")])),
            "PYTHONWARNINGS": "ignore",
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
            "OMP_NUM_THREADS": "1",
        }

    def start(self, name: str, *command: str) -> Process:
        log = self.folder / f"{name}.log"
        with log.open("wb") as out:
            popen = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=self.folder, env=self.environment, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        process = Process(name, popen, log)
        self.processes.append(process)
        return process

    def superlink(self, *options: str) -> Process:
        """Start the SuperLink, write the connection's settings and wait until it answers."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "test"\n[superlink.test]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        process = self.start(
            "superlink", "flower-superlink", "--insecure", "--disable-runtime-dependency-installation",
            "--host", "127.0.0.1", "--port", str(self.port), *options,
        )  # fmt: skip
        wait_for(lambda: self._listens() or process.popen.poll() is not None, 60, "the SuperLink's start")
        assert process.popen.poll() is None, process.text()[-3000:]
        return process

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def supernode(self, k: int, of: int, **node_config: str) -> Process:
        settings = {"partition-id": k, "num-partitions": of} | node_config
        text = " ".join(f"{name}={json.dumps(value)}" for name, value in settings.items())
        return self.start(
            f"supernode-{k}-{len(self.processes)}", "flower-supernode", "--insecure",
            "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1", "--port", str(free_port()),
            "--node-config", text,
        )  # fmt: skip

    def flwr(self, *command: str, timeout: float = 60) -> str:
        found = subprocess.run(
            [str(BIN / "flwr"), *command],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        return found.stdout + found.stderr

    def statuses(self) -> list[str]:
        """Statuses of all runs, oldest first: `flwr run` exits with 0 whatever happened."""
        text = self.flwr("list", self.connection, "--format", "json")
        runs = json.loads(text[text.index("{") :])["runs"]
        return [run["status"] for run in sorted(runs, key=lambda run: run["pending-at"])]

    def run(self, app: str, config: dict[str, Any], *options: str) -> None:
        """Submit a copy of an example."""
        folder = self.folder / app
        if not folder.exists():
            shutil.copytree(EXAMPLES / app, folder, ignore=shutil.ignore_patterns("__pycache__"))
        text = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
        said = self.flwr("run", str(folder), self.connection, "--run-config", text, *options, timeout=120)
        assert "uccessfully" in said, said

    def finish(self, runs: int = 1, seconds: float = 240) -> list[str]:
        """Wait for this many runs to end."""

        def ended() -> list[str]:
            found = self.statuses()
            return found if len(found) >= runs and all(status.startswith("finished") for status in found) else []

        return wait_for(ended, seconds, f"{runs} runs of the federation")


@contextlib.contextmanager
def flower(folder: Path) -> Iterator[Flower]:
    """A federation that is stopped whatever happens; the ends of its logs are shown if the test fails."""
    federation = Flower(folder)
    try:
        yield federation
    except BaseException:
        for process in federation.processes:
            print(f"--- {process.name} ---\n{process.text()[-2500:]}")
        raise
    finally:
        nodes_first = list(reversed(federation.processes))
        for process in nodes_first:
            if process.popen.poll() is None:
                process.popen.terminate()
        for process in nodes_first:
            process.stop()


def rounds(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "rounds.jsonl").read_text().splitlines()]


def accuracy(out: Path) -> Sequence[float]:
    return json.loads((out / "result.json").read_text())["accuracy"]
