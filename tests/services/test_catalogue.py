"""Where the servers listen, and what MLflow then asks of those who reach it."""

from __future__ import annotations

from pathlib import Path

from rl_core.runtime.home import Home
from rl_core.services import catalogue

OTHERS, THIS_MACHINE = ("0.0.0.0", "::", "192.0.2.7"), ("127.0.0.1", "::1", "localhost")


def option(command: object, name: str) -> str:
    assert isinstance(command, list)
    return command[command.index(name) + 1]


def test_servers_listen_where_they_are_told_and_nowhere_else(tmp_path: Path) -> None:
    for make in (catalogue.prefect_server, catalogue.mlflow_server):
        for host in (*OTHERS, *THIS_MACHINE):
            service = make(Home(tmp_path), host, 4321)
            assert (option(service.command, "--host"), option(service.command, "--port")) == (
                host,
                "4321",
            )
        for host in ("0.0.0.0", "::"):
            assert make(Home(tmp_path), host, 4321).url == "http://127.0.0.1:4321", (
                "an address to connect to"
            )
        assert make(Home(tmp_path), "192.0.2.7", 4321).url == "http://192.0.2.7:4321"


def test_mlflow_asks_others_for_a_password_and_this_machine_for_the_key(tmp_path: Path) -> None:
    for host in OTHERS:
        assert (
            option(catalogue.mlflow_server(Home(tmp_path), host, 1).command, "--app-name")
            == "basic-auth"
        )
    for host in THIS_MACHINE:
        command = catalogue.mlflow_server(Home(tmp_path), host, 1).command
        assert option(command, "--factory") == "rl_core.services.mlflow_app:create_app"
