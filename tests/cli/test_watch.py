"""`honestly watch` as a user starts and stops it."""

from __future__ import annotations

import builtins
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from study_being_run import FakeStudy
from watch_server import Events

import honestly
from honestly.cli import main


@pytest.fixture
def started(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    FakeStudy(tmp_path).close()
    path = os.pathsep.join([str(Path(honestly.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "honestly", "watch", str(tmp_path), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
    assert found, line + process.stderr.read()
    yield process, int(found[1])
    if process.poll() is None:
        process.kill()
    process.wait(60)
    process.stdout.close()
    process.stderr.close()


def test_ctrl_c_ends_it_at_once_though_tabs_are_open(started: tuple[subprocess.Popen[str], int]) -> None:
    process, port = started
    tabs = [Events(port) for _ in range(3)]
    for tab in tabs:
        tab.until(lambda e: len(e.runs) == 6)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    # after two seconds uvicorn would have said that it cancels the streams
    assert (process.returncode, out, err) == (0, "", "stopped\n")
    for tab in tabs:
        with pytest.raises(EOFError):
            tab.until(lambda e: False)
        tab.close()


def test_a_polite_kill_ends_it_without_a_traceback(started: tuple[subprocess.Popen[str], int]) -> None:
    process, port = started
    tab = Events(port)
    tab.until(lambda e: e.runs)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert err == ""
    tab.close()


def test_a_port_in_use_is_named_with_the_remedy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["watch", str(tmp_path), "--port", str(port)]) == 1
    err = capsys.readouterr().err
    assert f"port {port} of 127.0.0.1 is in use" in err
    assert "--port N" in err


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--port", "70000"], 2, "--port 70000: must be from 0 to 65535"),
        (["--port", "-1"], 2, "--port -1: must be from 0 to 65535"),
        (["--host", "no.such.host.invalid", "--port", "0"], 1, "no such address on this machine"),
        (["--host", "192.0.2.1", "--port", "0"], 1, "cannot listen on 192.0.2.1"),
    ],
)
def test_mistakes_end_with_a_message(
    tmp_path: Path, words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["watch", str(tmp_path), *words]) == status
    assert message in capsys.readouterr().err


def test_a_file_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["watch", str(tmp_path / "file")]) == 2
    assert "is a file: give the folder" in capsys.readouterr().err


def test_without_the_extra_the_remedy_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.split(".")[0] == "starlette":
            raise ModuleNotFoundError("No module named 'starlette'", name="starlette")
        return real(name, *rest)

    for name in [name for name in sys.modules if name.startswith(("honestly.show.live", "starlette"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["watch", str(tmp_path)]) == 1
    assert "pip install 'honestly[watch]'" in capsys.readouterr().err


def test_watching_needs_neither_torch_nor_pydantic() -> None:
    code = (
        "import sys, honestly.show.live.server, honestly.cli.watch; "
        "print(sorted({'torch', 'pydantic', 'matplotlib', 'rich'} & set(sys.modules)))"
    )
    path = str(Path(honestly.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert found.stdout.strip() == "[]"
