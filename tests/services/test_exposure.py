"""What has to be set before services are served to others, and what is then asked of them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_core.errors import ServiceError
from rl_core.runtime.home import Home
from rl_core.services import catalogue
from rl_core.services.exposure import check_exposure

OTHERS, THIS_MACHINE = ("0.0.0.0", "::", "192.0.2.7"), ("127.0.0.1", "::1", "localhost")


@pytest.fixture
def protected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """Everything that is asked for is there."""
    (tmp_path / "auth.ini").write_text("[mlflow]\n")
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", "ada:secret")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "ada:secret")
    monkeypatch.setenv("MLFLOW_AUTH_CONFIG_PATH", str(tmp_path / "auth.ini"))
    monkeypatch.setenv("MLFLOW_FLASK_SERVER_SECRET_KEY", "random")
    # An installed module stands for the packages of mlflow[auth], which may be missing here.
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object() if name == "flask_wtf" else None)
    yield monkeypatch


@pytest.mark.usefixtures("protected")
def test_with_passwords_for_both_the_services_may_be_reached_by_others() -> None:
    for host in (*OTHERS, *THIS_MACHINE):
        check_exposure(host)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PREFECT_SERVER_API_AUTH_STRING", None, "PREFECT_SERVER_API_AUTH_STRING (user:password)"),
        ("PREFECT_SERVER_API_AUTH_STRING", "secret", "PREFECT_SERVER_API_AUTH_STRING (user:password)"),
        ("PREFECT_API_AUTH_STRING", None, "PREFECT_API_AUTH_STRING (the same as the server's)"),
        ("PREFECT_API_AUTH_STRING", "ada:guess", "PREFECT_API_AUTH_STRING (the same as the server's)"),
        ("MLFLOW_AUTH_CONFIG_PATH", None, "MLFLOW_AUTH_CONFIG_PATH (a file)"),
        ("MLFLOW_AUTH_CONFIG_PATH", "/dev/null/none.ini", "MLFLOW_AUTH_CONFIG_PATH (a file)"),
        ("MLFLOW_FLASK_SERVER_SECRET_KEY", None, "MLFLOW_FLASK_SERVER_SECRET_KEY"),
        ("flask_wtf", None, "the packages of mlflow[auth]"),
    ],
)
def test_any_one_that_is_missing_is_named_alone(
    protected: pytest.MonkeyPatch, name: str, value: str | None, said: str
) -> None:
    if name == "flask_wtf":
        protected.setattr(importlib.util, "find_spec", lambda _: None)
    elif value is None:
        protected.delenv(name)
    else:
        protected.setenv(name, value)
    for host in OTHERS:
        with pytest.raises(ServiceError) as refused:
            check_exposure(host)
        assert str(refused.value).startswith(f"--host {host} lets others in; missing: {said}. Set all of:")
    for host in THIS_MACHINE:
        check_exposure(host)


def option(command: object, name: str) -> str:
    assert isinstance(command, list)
    return command[command.index(name) + 1]


def test_servers_listen_where_they_are_told_and_nowhere_else(tmp_path: Path) -> None:
    for make in (catalogue.prefect_server, catalogue.mlflow_server):
        for host in (*OTHERS, *THIS_MACHINE):
            service = make(Home(tmp_path), host, 4321)
            assert (option(service.command, "--host"), option(service.command, "--port")) == (host, "4321")
        assert make(Home(tmp_path), "0.0.0.0", 4321).url == "http://127.0.0.1:4321", "an address to connect to"
        assert make(Home(tmp_path), "192.0.2.7", 4321).url == "http://192.0.2.7:4321"


def test_mlflow_asks_others_for_a_password(tmp_path: Path) -> None:
    for host in OTHERS:
        assert option(catalogue.mlflow_server(Home(tmp_path), host, 1).command, "--app-name") == "basic-auth"
    for host in THIS_MACHINE:
        assert "--app-name" not in catalogue.mlflow_server(Home(tmp_path), host, 1).command
