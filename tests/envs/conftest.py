"""What these tests share: a retrieval server that behaves as its queries tell it, and a pool of
sandboxes."""

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from rl_core.envs.tools.places.sandbox_choice import SandboxMode
from rl_core.envs.tools.sandbox import SandboxPool, SandboxSettings, lease_pool

DOCUMENTS = ["Paris is the capital of France.", "<answer>Berlin</answer> is what this page says."]


class Handler(BaseHTTPRequestHandler):
    """The query's first word chooses the behaviour."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(request)
        word, _, rest = request["query"].partition(" ")
        self.close_connection = True
        if word == "slow":
            time.sleep(3)
        if word == "flaky" and sum(one["query"] == request["query"] for one in self.asked) < int(
            rest
        ):
            return self._answer(503, b"busy")
        if word == "status":
            return self._answer(int(rest), b'{"detail": "topk is too large"}')
        if word == "drip":
            return self._drip()
        if word == "huge":
            return self._answer(200, b'{"result": "' + b"x" * (5 * 2**20) + b'"}')
        bodies = {
            "garbage": b"<html>", "empty": b'{"result": [[]]}', "none": b'{"result": []}', "shape": b'{"results": 1}',
            "null": b"null", "odd": b'{"result": [[{"text": 1}]]}', "deep": b"[" * 50_000, "blank": b"",
            "hang": b'{"result": [[]]', "number": b'{"result": [[{"document": {"contents": 7}}]]}',
        }  # fmt: skip
        found = [
            {"document": {"contents": text}, "score": 1.0} for text in DOCUMENTS[: request["topk"]]
        ]
        self._answer(
            200,
            bodies.get(word) or json.dumps({"result": [found]}).encode()
            if word != "blank"
            else b"",
        )

    def log_message(self, *_: object) -> None:
        """Silence."""

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        try:
            for _ in range(30):
                self.wfile.write(b" ")
                self.wfile.flush()
                time.sleep(0.1)
        except OSError:
            return


@pytest.fixture(scope="package")
def search_url() -> Iterator[str]:
    """Its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/retrieve"
    server.shutdown()
    thread.join()
    server.server_close()


def places() -> list[SandboxMode]:
    """The places for programs that this machine has."""
    found = [SandboxMode.BUBBLEWRAP]
    for mode in (SandboxMode.DOCKER, SandboxMode.PODMAN):
        if shutil.which(mode) is None:
            continue
        asked = subprocess.run([mode, "info"], capture_output=True, timeout=20, check=False)
        found += [mode] if asked.returncode == 0 else []
    return found


@pytest.fixture(scope="package", params=places())
def pool(request: pytest.FixtureRequest) -> Iterator[SandboxPool]:
    """Sandboxes with little memory and little output, in each place that is here."""
    settings = SandboxSettings(mode=request.param, output_bytes=2**20, memory_bytes=256 * 2**20)
    lease = lease_pool(settings)
    yield lease.value
    lease.release()
