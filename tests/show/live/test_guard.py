"""Which requests are accepted, and the security headers of every response."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from watch_server import Watched, watched

from honestly.show.live.guard import POLICY, host_check


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watched(tmp_path_factory.mktemp("nothing")) as found:
        yield found


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1", "[::1]:80", "LOCALHOST"])
def test_our_names_are_answered_on_any_port_for_tunnels(server: Watched, host: str) -> None:
    assert server.get("/", Host=host).status == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.7", "", "[::1", "localhost:x", "a b",
     "127.0.0.1:80@evil.example", "localhost:80:90"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/events", "/static/main.js", "/nothing"])
def test_requests_for_another_host_are_refused(server: Watched, host: str, path: str) -> None:
    answer = server.get(path, Host=host)
    assert answer.status in (400, 421)
    assert "honestly" not in answer.text or answer.status == 421  # type: ignore[attr-defined]


def test_two_hosts_or_none_are_refused(server: Watched) -> None:
    for lines in ("Host: localhost\r\nHost: evil.example\r\n", ""):
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
            sock.sendall(f"GET / HTTP/1.1\r\n{lines}Connection: close\r\n\r\n".encode())
            assert re.match(rb"HTTP/1.1 4\d\d ", sock.recv(100))


@pytest.mark.parametrize("path", ["/", "/static/main.js", "/static/style.css", "/nothing", "/static/../app.py"])
def test_every_answer_has_the_policy(server: Watched, path: str) -> None:
    answer = server.get(path)
    for name, value in POLICY.items():
        assert answer.getheader(name) == value
    assert "access-control-allow-origin" not in {name.lower() for name, _ in answer.getheaders()}
    assert answer.getheader("server") is None


def test_the_policy_allows_this_server_and_nothing_else() -> None:
    rules = dict(part.strip().split(" ", 1) for part in POLICY["Content-Security-Policy"].split(";"))
    assert rules["default-src"] == "'none'"
    assert set(" ".join(rules.values()).split()) == {"'none'", "'self'", "'script'"}
    assert rules["require-trusted-types-for"] == "'script'"


@pytest.mark.parametrize("path", ["/static/../app.py", "/static/%2e%2e/app.py", "/static//etc/passwd", "/app.py"])
def test_files_outside_the_page_are_not_served(server: Watched, path: str) -> None:
    assert server.get(path).status == 404


def test_another_site_may_link_here_but_not_read(server: Watched) -> None:
    assert server.get("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="navigate").status == 200
    assert server.get("/events", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="cors").status == 403
    assert server.get("/static/main.js", Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors").status == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(server: Watched, method: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request(method, "/")
    assert connection.getresponse().status == 405
    connection.close()


def test_on_all_interfaces_only_addresses_and_own_names_are_answered() -> None:
    ours = host_check("0.0.0.0")
    assert ours("192.168.1.5:8765")
    assert ours("[fe80::1]:8765")
    assert ours(socket.gethostname())
    assert not ours("evil.example:8765")
    named = host_check("lab-server")
    assert named("lab-server:8765")
    assert named("localhost:8765")
    assert not named("192.168.1.5")


def test_the_page_is_served_without_any_of_the_users_folder(server: Watched, tmp_path: Path) -> None:
    answer = server.get("/")
    assert answer.getheader("content-type") == "text/html; charset=utf-8"
    assert str(tmp_path.parent) not in answer.text  # type: ignore[attr-defined]
