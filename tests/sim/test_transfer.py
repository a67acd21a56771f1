"""Downloads from a server that breaks off, ignores what is asked, has another file, is slow or is not there."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from honestly.sim.data import transfer as transfers
from honestly.sim.data.download import DownloadError, _from_a_mirror, fetch, shown
from honestly.sim.data.transfer import File, TransferError, transfer

BODY = np.random.default_rng(0).bytes(300_000)
FILE = File(len(BODY), hashlib.md5(BODY).hexdigest())


@dataclass
class Server:
    """Its wishes are used up request by request; what was asked is in ``ranges``."""

    url: str = ""
    body: bytes = BODY
    etag: str | None = '"one"'
    date: str | None = None
    ranges: list[str | None] = field(default_factory=list)
    cut_after: list[int | None] = field(default_factory=list)  # bytes of each answer
    ignore_range: bool = False
    statuses: list[int] = field(default_factory=list)
    lie: int = 0  # added to the start that Content-Range names
    chunked: bool = False
    pause: float = 0.0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, server: Server, *args: object) -> None:
        self.wishes = server
        super().__init__(*args)  # type: ignore[arg-type]

    def log_message(self, format: str, *args: object) -> None: ...

    def do_GET(self) -> None:
        w = self.wishes
        asked = self.headers.get("Range")
        w.ranges.append(asked)
        self.close_connection = True
        if w.statuses and (status := w.statuses.pop(0)) != 200:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        start = 0
        if asked and not w.ignore_range and self.headers.get("If-Range") in (w.etag, w.date):
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(w.body):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start + w.lie}-{len(w.body) - 1}/{len(w.body)}")
        else:
            self.send_response(200)
        if w.etag:
            self.send_header("ETag", w.etag)
        if w.date:
            self.send_header("Last-Modified", w.date)
        part = w.body[start:]
        if not w.chunked:
            self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        limit = w.cut_after.pop(0) if w.cut_after else None
        part = part[:limit]
        step = len(part) if not w.pause else 60_000
        for at in range(0, len(part), max(step, 1)):
            try:
                self.wfile.write(part[at : at + step])
                self.wfile.flush()
            except OSError:  # the client has given up
                return
            time.sleep(w.pause)


@pytest.fixture
def server() -> Iterator[Server]:
    wishes = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, wishes))
    http.daemon_threads = True
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    wishes.url = f"http://127.0.0.1:{http.server_address[1]}/file"
    yield wishes
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "PAUSE", 0.001)
    monkeypatch.setattr(transfers, "PIECE", 50_000)


def get(server: Server, folder: Path) -> bytes:
    transfer(server.url, folder / "file", FILE)
    assert [f.name for f in folder.iterdir()] == ["file"]  # nothing is left behind
    return (folder / "file").read_bytes()


def test_a_connection_that_breaks_off_is_continued(server: Server, tmp_path: Path) -> None:
    server.cut_after = [100_000, 70_000, 0, 1]
    assert get(server, tmp_path) == BODY
    assert server.ranges == [None, "bytes=100000-", "bytes=170000-", "bytes=170000-", "bytes=170001-"]


def test_an_interrupted_download_goes_on_in_another_process(server: Server, tmp_path: Path) -> None:
    def stop(done: int) -> None:
        if done > 120_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        transfer(server.url, tmp_path / "file", FILE, stop)
    assert not (tmp_path / "file").exists()
    have = (tmp_path / "file.part").stat().st_size
    assert 120_000 < have < len(BODY)
    seen: list[int] = []
    transfer(server.url, tmp_path / "file", FILE, seen.append)
    assert server.ranges == [None, f"bytes={have}-"]
    assert seen[0] == have
    assert seen[-1] == len(BODY)
    assert (tmp_path / "file").read_bytes() == BODY


def test_killed_and_continued(server: Server, tmp_path: Path) -> None:
    server.pause = 0.1
    code = "import sys; from pathlib import Path; from honestly.sim.data.transfer import *; transfer(sys.argv[1], "
    code += f"Path(sys.argv[2]), File({FILE.size}, {FILE.md5!r}))"
    process = subprocess.Popen([sys.executable, "-c", code, server.url, str(tmp_path / "file")])
    try:
        part, patience = tmp_path / "file.part", time.monotonic() + 30
        while not (part.exists() and part.stat().st_size) and time.monotonic() < patience:
            time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
    have = part.stat().st_size
    assert 0 < have < len(BODY)
    assert get(server, tmp_path) == BODY
    assert server.ranges == [None, f"bytes={have}-"]


def test_the_date_does_where_there_is_no_strong_etag(server: Server, tmp_path: Path) -> None:
    server.etag, server.date, server.cut_after = 'W/"weak"', "Sun, 15 Nov 2026 12:00:00 GMT", [10]
    assert get(server, tmp_path) == BODY
    assert server.ranges == [None, "bytes=10-"]


@pytest.mark.parametrize("obstacle", ["ignores ranges", "no version", "chunked"])
def test_a_server_that_cannot_continue_sends_all(server: Server, tmp_path: Path, obstacle: str) -> None:
    server.cut_after = [100_000]
    server.ignore_range = obstacle == "ignores ranges"
    server.chunked = obstacle == "chunked"  # no length: the end of the connection ends the file
    if obstacle == "no version":
        server.etag = None
    assert get(server, tmp_path) == BODY
    assert len(server.ranges) == 2


def test_a_file_that_changed_in_between_is_fetched_anew(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"of an older version")
    (tmp_path / "file.part.json").write_text(f'{{"url": "{server.url}", "version": "\\"zero\\""}}')
    assert get(server, tmp_path) == BODY
    assert len(server.ranges) == 1


@pytest.mark.parametrize("left", [b"x" * 1000, b"x" * len(BODY), b"x" * (len(BODY) + 5)])
@pytest.mark.parametrize("note", ["good", "damaged"])
def test_a_part_with_other_bytes_is_noticed_and_fetched_once_more(
    server: Server, tmp_path: Path, left: bytes, note: str
) -> None:
    (tmp_path / "file.part").write_bytes(left)
    content = f'{{"url": "{server.url}", "version": "\\"one\\""}}' if note == "good" else "{"
    (tmp_path / "file.part.json").write_text(content)
    assert get(server, tmp_path) == BODY


def test_a_damaged_file_of_the_same_size_is_refused(server: Server, tmp_path: Path) -> None:
    server.body = BODY[:-1] + b"?"
    with pytest.raises(TransferError, match=f"has not the MD5 sum {FILE.md5}"):
        get(server, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(server.ranges) == 1


@pytest.mark.parametrize("chunked", [True, False])
def test_another_file_is_refused_before_it_fills_the_disk(server: Server, tmp_path: Path, chunked: bool) -> None:
    server.body, server.chunked = BODY * 3, chunked
    with pytest.raises(TransferError, match=r"900,000 bytes: expected 300,000|more than 300,000 bytes"):
        get(server, tmp_path)
    assert not (tmp_path / "file").exists()


def test_an_error_page_is_no_file(server: Server, tmp_path: Path) -> None:
    server.body = b"<html>please log in</html>"
    with pytest.raises(TransferError, match="a file of 26 bytes: expected 300,000"):
        get(server, tmp_path)


def test_bytes_from_the_wrong_place_are_refused(server: Server, tmp_path: Path) -> None:
    server.cut_after, server.lie = [1000], 7
    with pytest.raises(TransferError, match="bytes that were not asked for"):
        get(server, tmp_path)


def test_a_busy_server_is_asked_again_and_a_missing_file_is_not(server: Server, tmp_path: Path) -> None:
    server.statuses = [503, 429]
    assert get(server, tmp_path) == BODY
    server.statuses = [404]
    with pytest.raises(TransferError, match="HTTP status 404"):
        transfer(server.url, tmp_path / "other", FILE)
    assert len(server.ranges) == 4


def test_a_dead_server_is_given_up(server: Server, tmp_path: Path) -> None:
    server.statuses = [500] * 9
    with pytest.raises(TransferError, match=r"HTTP status 500 .*3 tries without a byte"):
        get(server, tmp_path)
    assert len(server.ranges) == 3
    server.statuses = [200, *[500] * 9]
    server.cut_after = [1000]
    with pytest.raises(TransferError, match=r"HTTP status 500 .*6 tries without a byte"):
        get(server, tmp_path)


def test_a_slow_server_is_waited_for_and_a_stalled_one_is_left(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfers, "TIMEOUT", 1.0)
    server.pause = 0.3  # five pieces: longer than the limit in all, but never without a byte for that long
    begun = time.monotonic()
    assert get(server, tmp_path) == BODY
    assert time.monotonic() - begun > 1.0
    monkeypatch.setattr(transfers, "TIMEOUT", 0.1)
    (tmp_path / "file").unlink()
    server.ranges.clear()
    assert get(server, tmp_path) == BODY  # every stall is continued
    assert len(server.ranges) > 2


def test_several_processes_fetch_a_file_once(server: Server, tmp_path: Path) -> None:
    server.pause = 0.02
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: transfer(server.url, tmp_path / "file", FILE), range(6)))
    assert server.ranges == [None]
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_folder_without_locks_will_do(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*args: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    assert get(server, tmp_path) == BODY


def test_a_full_disk_is_no_fault_of_the_mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("honestly.sim.data.download.transfer", full)
    with pytest.raises(DownloadError, match=r"cannot write .*No space left on device.*--data"):
        fetch("mnist", tmp_path)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match=r"cannot write .*--data"):
        fetch("mnist", tmp_path / "file" / "raw")


def test_the_next_mirror_is_tried_and_all_reasons_are_told(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    top = server.url.removesuffix("file")
    monkeypatch.setitem(transfers.__dict__, "TRIES", 1)
    monkeypatch.setattr("honestly.sim.data.download.MIRRORS", {"mnist": ("http://127.0.0.1:9/", top)})
    _from_a_mirror("mnist", tmp_path / "file", FILE, "mnist, file 1 of 1")
    assert (tmp_path / "file").read_bytes() == BODY
    assert "downloading mnist, file 1 of 1 (0.3 MB)" in capsys.readouterr().err
    server.statuses = [404]
    with pytest.raises(DownloadError) as caught:
        _from_a_mirror("mnist", tmp_path / "second", FILE, "")
    for words in ("127.0.0.1:9/second: [Errno 111]", "HTTP status 404", "MNIST/raw/second"):
        assert words in str(caught.value)
    assert "goes on from there" not in str(caught.value)  # nothing has come
    server.cut_after, server.statuses = [1000], [200, 404]
    with pytest.raises(DownloadError, match="goes on from there"):
        _from_a_mirror("mnist", tmp_path / "second", FILE, "")


def test_progress_is_drawn_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with shown("cifar10, file 1 of 1", 2_000_000) as progress:
        progress(1_000_000)
    assert "1.0/2.0 MB" in capsys.readouterr().err
