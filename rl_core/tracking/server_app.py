"""MLflow's server as an app, for a server of this project that puts its key in front."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.types import ASGIApp


def server_app(store_uri: str, artifact_root: str) -> ASGIApp:
    """Return the app of `mlflow server` over a database. It takes its settings from the environment
    of its process, so there is one in a process.

    Args: store_uri: address of the database. artifact_root: address of the folder of the artifacts
    of new experiments.
    """
    from mlflow.server.constants import (
        ARTIFACT_ROOT_ENV_VAR,
        BACKEND_STORE_URI_ENV_VAR,
        REGISTRY_STORE_URI_ENV_VAR,
    )

    os.environ |= {
        BACKEND_STORE_URI_ENV_VAR: store_uri,
        REGISTRY_STORE_URI_ENV_VAR: store_uri,
        ARTIFACT_ROOT_ENV_VAR: artifact_root,
    }
    from mlflow.server.fastapi_app import app

    return app
