"""A Prefect server that fails ends a command in a sentence, and its client's traceback stays out of
it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from flows import cli
from flows.exit_codes import ExitCode
from rl_core.services.ports import free_port


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command's settings go with the test."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path))


class Answering(BaseHTTPRequestHandler):
    """Answers everything with the status that its server has."""

    def do_GET(self) -> None:
        self.send_error(self.server.status)  # type: ignore[attr-defined]

    do_POST = do_GET

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[str]:
    failing = HTTPServer(("127.0.0.1", 0), Answering)
    failing.status = request.param  # type: ignore[attr-defined]
    threading.Thread(target=failing.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{failing.server_port}/api"
    failing.shutdown()
    failing.server_close()


def ask_prefect() -> None:
    """Ask for the flow runs, as a flow does."""
    with get_client(sync_client=True) as client:
        client.read_flow_runs()


@contextmanager
def asking(url: str, ask: Callable[[], object] = ask_prefect) -> Iterator[None]:
    """Have the command ask, without patience, where Prefect's server is at this address."""
    changed = {PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(changed), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "app", ask)
        patch.setattr("sys.argv", ["rl-train", "run"])
        yield


@pytest.mark.parametrize("server", [500, 503], indirect=True)
def test_a_server_that_fails_is_a_sentence(server: str, capsys: pytest.CaptureFixture[str]):
    with asking(server), pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == ExitCode.MACHINE_ERROR
    said = capsys.readouterr().err
    assert "error: the Prefect server answered 50" in said
    assert "the same command goes on" in said
    assert "Traceback" not in said


def test_a_server_that_is_away_is_a_sentence(capsys: pytest.CaptureFixture[str]):
    url = f"http://127.0.0.1:{free_port('127.0.0.1')}/api"
    with asking(url), pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == ExitCode.MACHINE_ERROR
    assert "the Prefect server did not answer" in capsys.readouterr().err


@pytest.mark.parametrize("server", [422], indirect=True)
def test_a_request_that_is_wrong_keeps_its_traceback(server: str):
    with asking(server), pytest.raises(Exception, match="422"):
        cli.main()


@pytest.mark.parametrize("server", [500], indirect=True)
def test_another_server_is_not_taken_for_prefects(server: str):
    def ask_a_hub() -> None:
        httpx.get(f"{server}/models").raise_for_status()

    with (
        asking("http://127.0.0.1:1/api", ask_a_hub),
        pytest.raises(httpx.HTTPStatusError),
    ):
        cli.main()
