"""`honestly watch` for tests: a real server in a thread, and a reader of its events."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from honestly.show.live.server import listen, make_server


class Events:
    """A stream of events, read one by one, and the state that they build up, as the page does it."""

    def __init__(self, port: int, path: str = "/events", headers: dict[str, str] | None = None) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        self.connection.request("GET", path, headers=headers or {})
        self.answer = self.connection.getresponse()
        self.id, self.size = "", 0
        self.head: dict[str, Any] = {}
        self.runs: dict[str, Any] = {}
        self.details: dict[str, list[Any]] = {}

    def next(self) -> tuple[str, Any]:
        """The next event; EOFError at the end of the stream."""
        found: dict[str, str] = {}
        while True:
            line = self.answer.readline()
            if not line:
                raise EOFError
            self.size += len(line)
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name:
                found[name] = value
            elif "event" in found:
                self.id = found.get("id", self.id)
                event = found["event"], json.loads(found["data"])
                self.apply(*event)
                return event

    def apply(self, event: str, data: Any) -> None:
        if event == "state":
            if data.get("anew"):
                self.runs.clear()
                self.details.clear()
            self.head = data.get("head", self.head)
            self.runs |= {run["id"]: run for run in data.get("runs", [])}
        elif event == "rounds":
            held = self.details.setdefault(data["run"], [])
            held[data["start"] :] = data["rounds"]

    def until(self, condition: Callable[[Events], Any], seconds: float = 10) -> list[tuple[str, Any]]:
        """Read until a condition holds; the events that were read."""
        seen: list[tuple[str, Any]] = []
        end = time.monotonic() + seconds
        while not condition(self):
            seen.append(self.next())
            assert time.monotonic() < end, f"never came: {self.head} {list(self.runs.values())[:3]}"
        return seen

    def close(self) -> None:
        """Drop the connection without closing it properly, like a laptop that is closed."""
        self.answer.close()
        self.connection.close()


class Watched:
    """A running server."""

    def __init__(self, server: Any, port: int) -> None:
        self.server, self.port = server, port
        self.open: list[Events] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def get(self, path: str = "/", **headers: str) -> http.client.HTTPResponse:
        """One answer, read to its end."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path, headers={k.replace("_", "-"): v for k, v in headers.items()})
            answer = connection.getresponse()
            answer.text = answer.read().decode(errors="replace")  # type: ignore[attr-defined]
            return answer
        finally:
            connection.close()

    def events(self, path: str = "/events", **headers: str) -> Events:
        found = Events(self.port, path, {k.replace("_", "-"): v for k, v in headers.items()})
        self.open.append(found)
        return found


@contextmanager
def watched(folder: Path, *, interval: float = 0.05, heartbeat: float = 5.0, port: int = 0) -> Iterator[Watched]:
    """Run a server for a folder, and stop it at the end."""
    started = threading.Event()
    sock: socket.socket = listen("127.0.0.1", port)
    port = sock.getsockname()[1]
    server = make_server(folder, sock, interval=interval, heartbeat=heartbeat, started=started.set)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    found = Watched(server, port)
    try:
        assert started.wait(10)
        yield found
    finally:
        server.end()
        thread.join(10)
        for events in found.open:
            events.close()
        sock.close()
        assert not thread.is_alive()
