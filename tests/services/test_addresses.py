"""Addresses of servers that settings name are asked before a command spends anything on them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.cli import app
from rl_core.data.store.atomic import atomic_writer
from rl_core.errors import ServiceError
from rl_core.services import addresses
from rl_core.services.addresses import Server, check_addresses

VARIABLES = [name for server in Server for name in server.value]


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@contextmanager
def answering(status: int, kind: str, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def dead() -> Iterator[str]:
    with socket.socket() as bound:  # bound, and not listening
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_nothing_is_asked_where_nothing_is_named():
    check_addresses(*Server)


@pytest.mark.parametrize(
    ("variable", "form"),
    [
        ("PREFECT_API_URL", "http://{}/api"),
        ("MLFLOW_TRACKING_URI", "http://{}"),
        ("MLFLOW_TRACKING_URI", "postgresql+psycopg2://user:secret@{}/mlflow"),
        ("RL_TRAIN_RAY_ADDRESS", "{}"),
        ("RAY_ADDRESS", "ray://{}"),
    ],
)
def test_a_dead_server_is_named_with_its_variable(
    variable: str, form: str, dead: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(variable, form.format(dead))
    with pytest.raises(ServiceError) as caught:
        check_addresses(*Server)
    message = str(caught.value)
    assert message.startswith(f"{variable}: ") and "does not answer" in message
    assert f"unset {variable}" in message and dead in message


def test_the_recipes_address_is_named_by_its_key(dead: str):
    with pytest.raises(ServiceError, match=r"^placement\.ray_address: .*change placement\.ray_"):
        check_addresses(Server.RAY, ray_address=dead)


@pytest.mark.parametrize(
    ("variable", "path", "answer", "said"),
    [
        ("PREFECT_API_URL", "/api", (200, "application/json", b"true"), None),
        ("PREFECT_API_URL", "", (200, "text/html", b"<html>"), "ends in /api"),
        ("PREFECT_API_URL", "/api", (404, "application/json", b"{}"), "ends in /api"),
        ("PREFECT_API_URL", "/api", (401, "application/json", b"{}"), "PREFECT_API_AUTH_STRING"),
        ("PREFECT_API_URL", "/api", (502, "text/plain", b""), "answers 502"),
        ("MLFLOW_TRACKING_URI", "", (200, "text/html", b"OK"), None),
        ("MLFLOW_TRACKING_URI", "", (503, "text/plain", b""), "answers 503"),
    ],
)
def test_a_server_that_is_there_is_held_to_what_it_answers(
    variable: str,
    path: str,
    answer: tuple[int, str, bytes],
    said: str | None,
    monkeypatch: pytest.MonkeyPatch,
):
    with answering(*answer) as url:
        monkeypatch.setenv(variable, url + path)
        if said is None:
            check_addresses(*Server)
        else:
            with pytest.raises(ServiceError, match=said):
                check_addresses(*Server)


@pytest.mark.parametrize("address", ["head", "head:port", "http://", "["])
def test_what_is_no_address_of_ray_is_refused(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(ServiceError, match="is no address"):
        check_addresses(Server.RAY)


def test_another_server_is_not_taken_for_ray(monkeypatch: pytest.MonkeyPatch):
    with answering(200, "text/plain", b"") as url:
        monkeypatch.setenv("RAY_ADDRESS", url.removeprefix("http://"))
        with pytest.raises(ServiceError, match="another kind of server"):
            check_addresses(Server.RAY)


def test_a_running_cluster_is_taken(ray_cluster: None, monkeypatch: pytest.MonkeyPatch):
    import ray

    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    check_addresses(Server.RAY)


def test_a_proxy_in_between_is_told(dead: str, monkeypatch: pytest.MonkeyPatch):
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://{dead}")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    with pytest.raises(ServiceError, match=r"export NO_PROXY=127\.0\.0\.1"):
        check_addresses(Server.MLFLOW)


def test_a_server_that_accepts_and_stays_silent_is_given_up(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(addresses, "ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(ServiceError, match="does not answer"):
            check_addresses(Server.MLFLOW)


@pytest.mark.parametrize(
    "words",
    [
        ["run", "smoke/text"],
        ["eval", "embedded:smollm2-135m", "--recipe", "smoke/text"],
        ["lineage", "models:/x/1"],
        ["promote", "x", "1"],
        ["reproduce", "models:/x/1"],
        ["export", "models:/x/1"],
        ["report", "x"],
        ["compare", "x", "y"],
    ],
)
def test_each_command_that_would_use_it_says_so_at_once(
    words: list[str],
    dead: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{dead}")
    ended = CliRunner().invoke(app, words)
    assert isinstance(ended.exception, ServiceError)
    assert str(ended.exception).startswith("MLFLOW_TRACKING_URI: ")


def test_a_clusters_silence_is_no_fault_of_a_disk(tmp_path: Path):
    with pytest.raises(ConnectionError), atomic_writer(tmp_path / "file"):
        raise ConnectionError("Failed to connect to Ray cluster")
    assert not list(tmp_path.iterdir())
