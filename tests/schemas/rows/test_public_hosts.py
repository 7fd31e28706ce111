"""Addresses in rows lead to public machines alone, unless the user names others."""

import io
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from PIL import Image

from rl_core.errors import DataError
from schemas.rows.media_checks import load_image
from schemas.rows.public_hosts import VARIABLE, is_public


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("8.8.8.8", True),
        ("2001:4860:4860::8888", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fd00:ec2::254", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("2002:7f00:1::", False),
        ("64:ff9b::169.254.169.254", False),
        ("64:ff9b::8.8.8.8", True),
    ],
)
def test_what_is_public(address: str, expected: bool) -> None:
    assert is_public(address) is expected


class Pictures(BaseHTTPRequestHandler):
    """Answers `/a.png` with a picture, and `/to/ADDRESS` with a redirect there."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        content = io.BytesIO()
        Image.new("RGB", (2, 2)).save(content, "PNG")
        self.send_response(200)
        self.send_header("Content-Length", str(content.tell()))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content.getvalue())

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def pictures(host: str) -> Iterator[str]:
    Pictures.asked.clear()
    with ThreadingHTTPServer((host, 0), Pictures) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{host}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "LOCALHOST."])
def test_a_row_reaches_no_server_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pictures("127.0.0.1") as url:
        address = url.replace("127.0.0.1", host) + "/a.png"
        with pytest.raises(DataError, match="cannot be opened"):
            load_image(address)
        assert Pictures.asked == []


def test_a_name_is_judged_by_what_it_resolves_to(monkeypatch: pytest.MonkeyPatch) -> None:
    known = socket.getaddrinfo

    def resolve(host: object, *rest: object, **named: object) -> object:
        return known("127.0.0.1" if host == "pictures.example" else host, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.delenv(VARIABLE, raising=False)
    with pictures("127.0.0.1") as url:
        address = url.replace("127.0.0.1", "pictures.example") + "/a.png"
        with pytest.raises(DataError, match=r"127\.0\.0\.1 is no public address"):
            load_image(address)
        assert Pictures.asked == []
        monkeypatch.setenv(VARIABLE, "another.example, pictures.example")
        assert load_image(address).size == (2, 2)


def test_a_redirect_is_judged_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "127.0.0.2")
    with pictures("127.0.0.2") as url:
        assert load_image(f"{url}/to/{url}/a.png").size == (2, 2)
        with pytest.raises(DataError, match=r"127\.0\.0\.1 is no public address"):
            load_image(f"{url}/to/http://127.0.0.1:{url.rpartition(':')[2]}/a.png")
