"""A Prefect server that fails ends a command in a sentence, and its client's traceback stays out of
it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

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


def ask(url: str) -> None:
    """Ask a Prefect server for its flow runs, as a flow does, without patience."""
    changed = {PREFECT_API_URL: url, PREFECT_CLIENT_MAX_RETRIES: 0}
    with temporary_settings(changed), get_client(sync_client=True) as client:
        client.read_flow_runs()


@pytest.mark.parametrize("server", [500, 503], indirect=True)
def test_a_server_that_fails_is_a_sentence(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(cli, "app", lambda: ask(server))
    monkeypatch.setattr("sys.argv", ["rl-train", "run"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == ExitCode.MACHINE_ERROR
    said = capsys.readouterr().err
    assert "error: the Prefect server answered 50" in said
    assert "the same command goes on" in said
    assert "Traceback" not in said


def test_a_server_that_is_away_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(cli, "app", lambda: ask(f"http://127.0.0.1:{free_port('127.0.0.1')}/api"))
    monkeypatch.setattr("sys.argv", ["rl-train", "run"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == ExitCode.MACHINE_ERROR
    assert "the Prefect server did not answer" in capsys.readouterr().err


@pytest.mark.parametrize("server", [422], indirect=True)
def test_a_request_that_is_wrong_keeps_its_traceback(server: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cli, "app", lambda: ask(server))
    monkeypatch.setattr("sys.argv", ["rl-train", "run"])
    with pytest.raises(Exception, match="422"):
        cli.main()
