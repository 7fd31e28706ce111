"""Exposure of the services: beyond this machine they are served only with authentication."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
from pathlib import Path

from rl_core.errors import ServiceError

LOCALHOST = "127.0.0.1"
LOCAL_API = "RL_TRAIN_LOCAL_API"
"""Environment variable with the address of the Prefect API that a run started for itself. Pages of
it are gone when the run has ended, so that nothing stored leads to them."""
HOW = """\
  export PREFECT_SERVER_API_AUTH_STRING=USER:PASSWORD       # the server asks for it
  export PREFECT_API_AUTH_STRING=USER:PASSWORD              # workers and commands give it
  export MLFLOW_AUTH_CONFIG_PATH=/path/to/basic_auth.ini    # with admin_username, admin_password
  export MLFLOW_FLASK_SERVER_SECRET_KEY=SOMETHING_RANDOM
  pip install 'mlflow[auth]'
Passwords travel in clear text: put TLS in front (a reverse proxy), or use an SSH tunnel and leave
--host alone."""


def is_local(host: str) -> bool:
    """Return True if an address to listen on is reachable from this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(host: str) -> None:
    """Refuse to serve other machines without authentication.

    Raises: ServiceError saying what is missing and how to set it.
    """
    if is_local(host):
        return
    missing = [*_missing_prefect(), *_missing_mlflow()]
    if missing:
        raise ServiceError(
            f"--host {host} lets others in; missing: {'; '.join(missing)}. Set all of:\n{HOW}"
        )


def _missing_prefect() -> list[str]:
    asked, given = (
        os.environ.get(f"PREFECT_{side}API_AUTH_STRING", "") for side in ("SERVER_", "")
    )
    if ":" not in asked:
        return ["PREFECT_SERVER_API_AUTH_STRING (user:password)"]
    if given == asked:
        return []
    return ["PREFECT_API_AUTH_STRING (the same as the server's)"]


def _missing_mlflow() -> list[str]:
    missing = []
    if not Path(os.environ.get("MLFLOW_AUTH_CONFIG_PATH", "")).is_file():
        missing.append("MLFLOW_AUTH_CONFIG_PATH (a file)")
    if not os.environ.get("MLFLOW_FLASK_SERVER_SECRET_KEY"):
        missing.append("MLFLOW_FLASK_SERVER_SECRET_KEY")
    if importlib.util.find_spec("flask_wtf") is None:
        missing.append("the packages of mlflow[auth]")
    return missing
