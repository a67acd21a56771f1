"""Downloads from mirrors that disconnect, have another file, are busy or do not exist."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from honestly.sim.data import download as downloads
from honestly.sim.data.download import DownloadError, RemoteFile, fetch, show_progress
from honestly.sim.data.files import SETS

BODY = np.random.default_rng(0).bytes(300_000)
FILE = RemoteFile(len(BODY), hashlib.md5(BODY).hexdigest())


@dataclass
class Server:
    """What it answers, request by request: a status, a body, and how many bytes of it come."""

    url: str = ""
    body: bytes = BODY
    statuses: list[int] = field(default_factory=list)
    cut_after: list[int] = field(default_factory=list)
    announce: bool = True
    requests: int = 0
    mirrors: tuple[str, ...] = ()

    def fetch(self, place: Path) -> Path:
        """As the simulator does, a data set of one file."""
        return fetch(replace(SETS["mnist"], mirrors=self.mirrors, files={"file.gz": FILE}), place)


class Handler(BaseHTTPRequestHandler):
    def __init__(self, server: Server, *args: object) -> None:
        self.wishes = server
        super().__init__(*args)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        w = self.wishes
        w.requests += 1
        self.send_response(w.statuses.pop(0) if w.statuses else 200)
        if w.announce:
            self.send_header("Content-Length", str(len(w.body)))
        self.end_headers()
        body = w.body[: w.cut_after.pop(0)] if w.cut_after else w.body
        try:
            for at in range(0, len(body), 60_000):
                self.wfile.write(body[at : at + 60_000])
        except OSError:  # the client has given up
            return


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    wishes = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, wishes))
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    wishes.url = f"http://127.0.0.1:{http.server_address[1]}/"
    wishes.mirrors = (wishes.url,)
    monkeypatch.setattr(downloads, "PIECE", 50_000)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    yield wishes
    http.shutdown()
    http.server_close()
    thread.join()


def test_an_existing_file_is_not_downloaded(server: Server, tmp_path: Path) -> None:
    assert server.fetch(tmp_path) == tmp_path
    assert (tmp_path / "file.gz").read_bytes() == BODY
    server.fetch(tmp_path)
    assert server.requests == 1
    (tmp_path / "file.gz").write_bytes(BODY[:-1])  # damaged
    server.fetch(tmp_path)
    assert (tmp_path / "file.gz").read_bytes() == BODY
    assert server.requests == 2


def test_busy_servers_and_broken_downloads_are_retried(server: Server, tmp_path: Path) -> None:
    server.statuses, server.cut_after = [503], [0, 100_000]
    server.fetch(tmp_path)
    assert server.requests == 3
    assert [f.name for f in tmp_path.iterdir()] == ["file.gz"]  # nothing else is left


@pytest.mark.parametrize(
    ("body", "announce", "message", "requests"),
    [
        (BODY[:-1] + b"?", True, "(?i)hash", 3),
        (BODY * 3, True, "a file of 900,000 bytes: expected 300,000", 1),
        (BODY * 3, False, "more than 300,000 bytes", 1),
        (b"<html>please log in</html>", True, "a file of 26 bytes: expected 300,000", 1),
    ],
)
def test_a_different_file_is_refused(
    server: Server, tmp_path: Path, body: bytes, announce: bool, message: str, requests: int
) -> None:
    server.body, server.announce = body, announce
    with pytest.raises(DownloadError, match=message):
        server.fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert server.requests == requests


def test_the_next_mirror_is_tried_and_all_reasons_are_reported(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(downloads, "RETRIES", 0)
    server.mirrors = ("http://127.0.0.1:9/", server.url)
    server.fetch(tmp_path)
    assert "downloading mnist, file 1 of 1 (0.3 MB)" in capsys.readouterr().err
    (tmp_path / "file.gz").unlink()
    server.statuses = [404]
    with pytest.raises(DownloadError) as caught:
        server.fetch(tmp_path)
    for words in (
        "127.0.0.1:9/file.gz: ",
        "404",
        "offline",
        "--data or HONESTLY_DATA",
        "MNIST/raw/file.gz",
        "dataset=digits",
    ):
        assert words in str(caught.value)


def test_an_interruption_leaves_no_files(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(self: object, count: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(downloads.Progress, "update", stop)
    with pytest.raises(KeyboardInterrupt):
        server.fetch(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_not_blamed_on_the_mirror(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: object, count: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(downloads.Progress, "update", full)
    with pytest.raises(DownloadError, match=r"cannot write .*No space left on device.*--data"):
        server.fetch(tmp_path)


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match=r"cannot write .*--data"):
        fetch(SETS["mnist"], tmp_path / "file" / "raw")


def test_progress_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with show_progress("cifar10, file 1 of 1", 2_000_000) as progress:
        progress.total = 2_000_000
        progress.update(1_000_000)
    assert "1.0/2.0 MB" in capsys.readouterr().err
