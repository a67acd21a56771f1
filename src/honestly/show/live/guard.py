"""Which requests are answered, and what a browser may do with the answer.

A page on the internet can make its own name point to 127.0.0.1 (DNS rebinding). The browser then treats this server as
part of that page, but it still sends that name as Host. Requests with an unknown name are therefore refused.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def host_check(host: str) -> Callable[[str], bool]:
    """Whether a server on `host` answers to this name; the port does not matter, so an ssh tunnel works.

    On all interfaces every IP address is allowed, because an address, unlike a name, cannot be redirected.

    >>> ours = host_check("127.0.0.1")
    >>> ours("localhost:8765"), ours("[::1]:80"), ours("evil.example:8765"), ours("10.0.0.7")
    (True, True, False, False)
    """
    names = LOOPBACK | {host.lower()}
    address = _address(host)
    everywhere = address is not None and address.is_unspecified
    if everywhere:
        names |= {socket.gethostname().lower()}

    def check(header: str) -> bool:
        name = _name(header)
        return name in names or (everywhere and _address(name) is not None)

    return check


def _name(header: str) -> str:
    """The host of a Host header, without port and brackets; empty if it is malformed."""
    if header.startswith("["):
        inside, bracket, rest = header[1:].partition("]")
        return inside.lower() if bracket and (not rest or rest[0] == ":") else ""
    name, _, port = header.partition(":")
    return name.lower() if not port or (port.isascii() and port.isdigit()) else ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class Guard:
    """Refuses other hosts and other sites, and adds the policy to every answer."""

    def __init__(self, app: ASGIApp, *, host: str) -> None:
        self.app = app
        self.ours = host_check(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in POLICY.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        refusal = self._refusal(Headers(scope=scope))
        answer: Any = self.app if refusal is None else refusal
        await answer(scope, receive, guarded)

    def _refusal(self, headers: Headers) -> PlainTextResponse | None:
        hosts = headers.getlist("host")
        if len(hosts) != 1 or not self.ours(hosts[0]):
            message = "This page answers only to the address that `honestly watch` printed.\n"
            return PlainTextResponse(message, status_code=421)
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return PlainTextResponse("Requests from other sites are refused.\n", status_code=403)
        return None
