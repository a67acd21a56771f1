"""The server: its socket, and an immediate end."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from honestly.show.live.app import application
from honestly.show.live.feed import INTERVAL, Feed
from honestly.show.live.stream import HEARTBEAT

PORT = 8765


class Server(uvicorn.Server):
    """A server that ends its streams on exit, which would otherwise keep it alive forever."""

    def __init__(self, config: uvicorn.Config, feed: Feed, started: Callable[[], None]) -> None:
        super().__init__(config)
        self.feed, self.on_start = feed, started
        self.loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets=sockets)
        self.loop = asyncio.get_running_loop()
        self.on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """On Ctrl-C."""
        super().handle_exit(sig, frame)
        self.end()

    def end(self) -> None:
        """Stop serving; may be called from any thread or signal handler."""
        self.should_exit = True
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.feed.stop)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; an `OSError` says what to do if the address is not available."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise OSError(f"--host {host}: no such address on this machine; the default is 127.0.0.1") from error
    family, kind, protocol, _, address = addresses[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            remedy = "choose another one with --port N (--port 0 takes any free one)"
            raise OSError(f"port {port} of {host} is in use, maybe by another honestly watch: {remedy}") from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise OSError(f"port {port} needs administrator rights: choose one above 1023 with --port N") from error
        raise OSError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return sock


def make_server(
    folder: Path,
    sock: socket.socket,
    *,
    host: str = "127.0.0.1",
    interval: float = INTERVAL,
    heartbeat: float = HEARTBEAT,
    started: Callable[[], None] = lambda: None,
) -> Server:
    """A server for a folder; `run(sockets=[sock])` serves until it is interrupted."""
    feed = Feed(folder, interval=interval)
    config = uvicorn.Config(
        application(feed, host=host, heartbeat=heartbeat),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=2,
        proxy_headers=False,
    )
    return Server(config, feed, started)


def address(sock: socket.socket, host: str) -> str:
    """The address for the browser.

    >>> with listen("127.0.0.1", 0) as sock:
    ...     address(sock, "127.0.0.1").startswith("http://127.0.0.1:")
    True
    """
    name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{sock.getsockname()[1]}/"
