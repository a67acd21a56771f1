"""`flwr run . local` of the quickstart from a clone, as its README says: in an environment of its own, with Ray."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from flower_processes import EXAMPLES, accuracy, free_port, rounds, wait_for

ROOT = EXAMPLES.parent
APP = EXAMPLES / "flower-quickstart"
#: An existing environment, so the packages are not downloaded for every run of the test.
READY = "HONESTLY_TEST_FLOWER_ENV"


def lines_of_the_readme() -> list[str]:
    """The two commands of the section on the simulation."""
    text = (APP / "README.md").read_text()
    found = re.search(r"test_quickstart\.py follows these lines -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert found is not None
    return found[1].strip().splitlines()


def processes_with(word: str) -> list[int]:
    """Processes whose environment has this word: those that the run started and left."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Variables of a user with a fresh environment; the SuperLink that `flwr run` leaves behind is stopped."""
    home = tmp_path / "flwr-home"
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    yield kept | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_LOCAL_CONTROL_API_PORT": str(free_port()),
        "OMP_NUM_THREADS": "1",
    }
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in processes_with(f"FLWR_HOME={home}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
        end = time.monotonic() + 10
        while processes_with(f"FLWR_HOME={home}") and time.monotonic() < end:
            time.sleep(0.5)


def test_the_app_asks_no_index_for_this_package() -> None:
    import tomllib

    settings = tomllib.loads((APP / "pyproject.toml").read_text())
    assert settings["project"]["dependencies"] == []
    install, run = lines_of_the_readme()
    assert install.startswith('pip install -e "../..[flower]"')
    assert run.startswith("flwr run . local")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_flwr_run_local_from_a_clone(tmp_path: Path, environment: dict[str, str]) -> None:
    clone = tmp_path / "clone"
    for name in ("src", "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, clone / name)
    shutil.copytree(APP, clone / "examples" / APP.name, ignore=shutil.ignore_patterns("__pycache__"))
    app = clone / "examples" / APP.name
    install, run = lines_of_the_readme()
    ready = os.environ.get(READY)
    venv = Path(ready) if ready else tmp_path / "venv"
    if not ready:
        subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=300)
    environment |= {"PATH": os.pathsep.join([str(venv / "bin"), environment["PATH"]]), "VIRTUAL_ENV": str(venv)}
    out = tmp_path / "out"
    run = run.replace("/tmp/digits", str(out)).replace(
        "num-supernodes=10", "num-supernodes=8 client-resources-num-cpus=1"
    )
    for command, seconds in ((install, 900), (run, 400)):
        done = subprocess.run(
            ["bash", "-euc", command],
            cwd=app, env=environment, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    wait_for(lambda: (out / "result.json").exists(), 120, "the end of the run")
    listed = subprocess.run(
        [venv / "bin" / "flwr", "list", "local", "--format", "json"],
        cwd=app, env=environment, capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    statuses = [run["status"] for run in json.loads(listed[listed.index("{") :])["runs"]]
    assert statuses == ["finished:completed"]
    assert len(rounds(out)) == 5
    assert accuracy(out)[-1] > 0.8
    assert all("NaN" in " ".join(line["reasons"].values()) for line in rounds(out))
