"""The services: their commands, settings and health checks."""

from __future__ import annotations

import base64
import os
import ssl
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx

from rl_core.errors import ServiceError
from rl_core.runtime.home import Home
from rl_core.runtime.home_keys import prefect_password
from rl_core.runtime.settings_files import DEPLOYMENTS
from rl_core.services.exposure import is_local
from rl_core.services.own_pages import ANY_HOST, hosts_served
from rl_core.services.service import Service

REPOSITORY = Path(__file__).resolve().parents[2]
"""Folder of our packages: the checkout, or where pip installed them."""
PROJECT_FILE = DEPLOYMENTS / "prefect.yaml"
POOL_KIND = "process"
USUAL_PORTS = {"prefect": 4200, "mlflow": 5000}
"""Default ports of the servers, in the order of their start; workers come after them."""
ANSWER_S = 60.0
"""Seconds that a machine under full load may take to answer."""
RETRY_S = 0.5
QUERY_SECONDS = "2"
"""Seconds between a worker's queries for runs; Prefect's own default of 10 is for many workers on
one server."""


@dataclass(frozen=True)
class WorkPool:
    """A queue in which runs wait for a worker."""

    name: str
    at_once: int | None
    """Maximum number of concurrent runs; None sets no limit."""
    description: str


WORK_POOLS = (
    WorkPool(
        "rl-train", 1, "Training, on this machine's devices: one run at a time, the others wait"
    ),
    WorkPool("rl-light", None, "Preparation and evaluation; needs no accelerator"),
)


def base_environment(home: Home) -> dict[str, str]:
    """Return the environment of every service: local state, no telemetry."""
    return home.environment() | {"PYTHONUNBUFFERED": "1"}


def access_to_prefect(home: Home, url: str) -> dict[str, str]:
    """Return the environment of processes that use the home's Prefect server at `url`."""
    return {
        "PREFECT_API_URL": f"{url}/api",
        "PREFECT_API_AUTH_STRING": prefect_password(home.root),
    }


def prefect_command(host: str, port: int, *options: str) -> list[str]:
    """Return the command of a Prefect API server, as `prefect server start` would run it.

    Args: options: further ones of uvicorn.
    """
    app = ["--factory", "flows.prefect_api:create_app", "--host", host, "--port", str(port)]
    # -P keeps the modules of the current folder out of the server.
    return [sys.executable, "-P", "-m", "uvicorn", *app, "--timeout-keep-alive", "5", *options]


def prefect_server(home: Home, host: str, port: int) -> Service:
    """Return the service with Prefect's API and UI, on SQLite in the home folder (or
    `PREFECT_SERVER_DATABASE_CONNECTION_URL`)."""
    url = f"http://{_shown(host)}:{port}"
    allowed = os.environ.get("RL_TRAIN_ALLOWED_HOSTS", "")
    settings = {
        **access_to_prefect(home, url),
        "PREFECT_SERVER_API_AUTH_STRING": prefect_password(home.root),
        "PREFECT__SERVER_FINAL": "1",
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"{url},http://localhost:{port}",
        # Beyond this machine a password is asked for, and its names are not known here.
        "RL_TRAIN_ALLOWED_HOSTS": allowed if is_local(host) else ANY_HOST,
    }
    return Service(
        name="prefect",
        command=prefect_command(host, port),
        environment=base_environment(home) | settings,
        url=url,
        answers=lambda: answers(f"{url}/api/health"),
    )


def mlflow_server(home: Home, host: str, port: int) -> Service:
    """Return the service with the MLflow UI over the home's database. Runs write to the database
    itself, so they do not depend on the server."""
    url = f"http://{_shown(host)}:{port}"
    if is_local(host):
        command = _mlflow_command(host, port)
        names = [name for name in hosts_served() if ":" not in name]
        settings = {
            "RL_TRAIN_HOME": str(home.root),
            "MLFLOW_TRACKING_URI": home.mlflow_uri,
            # MLflow's own lists have to know what ours let pass.
            "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(f"{name},{name}:*" for name in names),
            "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(f"http://{one}:{port}" for one in names),
        }
    else:
        command, settings = _mlflow_for_others(home, host, port), dict[str, str]()
    return Service(
        name="mlflow",
        command=command,
        environment=base_environment(home) | settings,
        url=url,
        answers=lambda: answers(f"{url}/health"),
    )


def _mlflow_command(host: str, port: int) -> list[str]:
    app = ["--factory", "rl_core.services.mlflow_app:create_app"]
    return [sys.executable, "-P", "-m", "uvicorn", *app, "--host", host, "--port", str(port)]


def _mlflow_for_others(home: Home, host: str, port: int) -> list[str]:
    """Return the command of MLflow's own server with its own passwords."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port)]
    command += ["--workers", "1", "--app-name", "basic-auth"]
    command += ["--backend-store-uri", home.mlflow_uri, "--no-serve-artifacts"]
    return [*command, "--default-artifact-root", home.mlflow_artifacts.as_uri()]


def worker(home: Home, pool: str, prefect_url: str) -> Service:
    """Return the worker that starts the runs of a work pool, as processes on this machine."""
    api, password = f"{prefect_url}/api", prefect_password(home.root)
    settings = access_to_prefect(home, prefect_url) | {
        "PREFECT_WORKER_QUERY_SECONDS": QUERY_SECONDS
    }
    name = f"worker-{pool}"
    return Service(
        name=name,
        command=[
            sys.executable,
            "-m",
            "prefect",
            "worker",
            "start",
            "--pool",
            pool,
            "--name",
            name,
        ],
        environment=base_environment(home) | settings,
        url=f"{prefect_url}/work-pools/work-pool/{pool}",
        answers=lambda: _is_online(api, pool, name, password),
        prepare=lambda: _forget_worker(api, pool, name, password),
    )


def answers(url: str) -> bool:
    """Return True if a GET is answered with 200."""
    try:
        found = httpx.get(url, headers=credentials(), timeout=5, verify=_certificates())
    except httpx.HTTPError:
        return False
    return found.status_code == httpx.codes.OK


@cache
def _certificates() -> ssl.SSLContext:
    """Return the usual context, read once: httpx reads a thousand certificates for every request,
    which takes longer than the request, and services are asked twenty times a second while they
    start."""
    return httpx.create_ssl_context()


def ask(url: str, body: Mapping[str, object] | None = None, password: str = "") -> Any:
    """Return the JSON answer of Prefect's API; None for 404.

    Args: password: `user:password`; empty takes `PREFECT_API_AUTH_STRING`. Raises: ServiceError.
    """
    found = _request("GET" if body is None else "POST", url, body, password)
    if found.status_code == httpx.codes.NOT_FOUND:
        return None
    return found.json()


def tell(method: str, url: str, body: object, password: str = "") -> None:
    """Send a request to Prefect's API.

    Args: password: as of `ask`. Raises: ServiceError, also for 404.
    """
    if _request(method, url, body, password).status_code == httpx.codes.NOT_FOUND:
        raise ServiceError(
            f"{method} {url}: there is no such thing; is it the address of a Prefect API?"
        )


def _request(method: str, url: str, body: object = None, password: str = "") -> httpx.Response:
    """Return the response, which may be a 404. Raises: ServiceError on any other failure."""
    end = time.monotonic() + ANSWER_S
    try:
        while True:
            headers = credentials(password)
            found = httpx.request(
                method, url, json=body, headers=headers, timeout=ANSWER_S, verify=_certificates()
            )
            # Prefect's word for: another one is writing to the database, ask again.
            if found.status_code != httpx.codes.SERVICE_UNAVAILABLE or time.monotonic() > end:
                if found.status_code == httpx.codes.NOT_FOUND:
                    return found
                return found.raise_for_status()
            time.sleep(RETRY_S)
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        advice = "see the server's log, and try again"
        if code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            advice = "set PREFECT_API_AUTH_STRING: rl-train status --env prints that of the home"
        raise ServiceError(f"{method} {url} was answered with {code}; {advice}") from error
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise ServiceError(
            f"{method} {url} failed: {reason}; see the server's log, and try again"
        ) from error


def _is_online(api: str, pool: str, name: str, password: str) -> bool:
    try:
        workers = ask(f"{api}/work_pools/{pool}/workers/filter", {}, password) or []
    except ServiceError:
        return False
    return any(found["name"] == name and found["status"] == "ONLINE" for found in workers)


def _forget_worker(api: str, pool: str, name: str, password: str) -> None:
    """Delete a worker of this name from the server, whose last heartbeat could be mistaken for that
    of a new one."""
    _request("DELETE", f"{api}/work_pools/{pool}/workers/{name}", None, password)


def credentials(password: str = "") -> dict[str, str]:
    """Return the header that Prefect's API asks for: of `password`, or of
    `PREFECT_API_AUTH_STRING`."""
    words = password or os.environ.get("PREFECT_API_AUTH_STRING")
    if not words:
        return {}
    return {"Authorization": f"Basic {base64.b64encode(words.encode()).decode()}"}


def _shown(host: str) -> str:
    """Return the address to connect to for a `host` to listen on."""
    if host in ("0.0.0.0", "::"):
        return "127.0.0.1"
    return host
