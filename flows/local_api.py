"""The Prefect API of a run in this process if no server is configured: a server process that ends
with this one.

Prefect would start the same process by itself, but not before the flow is called, and only after
importing the whole server here. Started this way it comes up while the run's own packages are
imported.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import time
from pathlib import Path

from rl_core.errors import ServiceError
from rl_core.services.exposure import LOCALHOST
from rl_core.services.ports import free_port

DECIDING = (
    "PREFECT_API_URL",
    "PREFECT_PROFILE",
    "PREFECT_PROFILES_PATH",
    "PREFECT_SERVER_EPHEMERAL_ENABLED",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE",
)
"""Environment variables by which a user selects a server."""
AS_PREFECT_WOULD = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
}
"""Environment that Prefect sets for the servers that it starts by itself."""
POLL_S = 0.05
GRACE_S = 5.0


class LocalApi:
    """A starting server. Create it before Prefect is imported, since Prefect reads the address
    then."""

    def __init__(self) -> None:
        from rl_core.services.catalogue import prefect_command

        self.port = free_port(LOCALHOST)
        self.process = subprocess.Popen(
            prefect_command(LOCALHOST, self.port, "--log-level", "error", "--lifespan", "on"),
            env=os.environ | AS_PREFECT_WOULD,
            # Ctrl-C is this process's to answer, which still has the run's end to report.
            start_new_session=True,
        )
        # Registered first and therefore run last: Prefect sends its last logs and events at exit.
        atexit.register(self.stop)

    @property
    def url(self) -> str:
        """Value for `PREFECT_API_URL`."""
        return f"http://{LOCALHOST}:{self.port}/api"

    def wait(self) -> None:
        """Return once the server answers. Raises: ServiceError when it does not."""
        from rl_core.services.catalogue import answers

        timeout_s = float(os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"])
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None and time.monotonic() < deadline:
            if answers(f"{self.url}/health"):
                return
            time.sleep(POLL_S)
        ended = self.process.poll()
        how = (
            f"ended with code {ended}"
            if ended is not None
            else f"does not answer within {timeout_s:g} s"
        )
        raise ServiceError(
            f"the local Prefect API {how}; `rl-train up` starts one that stays and keeps a log"
        )

    def stop(self) -> None:
        """Stop the server."""
        self.process.terminate()
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_local_api() -> LocalApi | None:
    """Start an API server and set `PREFECT_API_URL` to it.

    Returns: None if the user has Prefect settings, which are left to Prefect.
    """
    if _is_configured(Path(os.environ["PREFECT_HOME"])):
        return None
    api = LocalApi()
    os.environ["PREFECT_API_URL"] = api.url
    return api


def _is_configured(prefect_home: Path) -> bool:
    """Return True if something may select a server, or forbid one; checked without importing
    Prefect, which takes seconds."""
    project = Path("pyproject.toml")
    return (
        any(name in os.environ for name in DECIDING)
        or any(
            path.is_file()
            for path in (prefect_home / "profiles.toml", Path("prefect.toml"), Path(".env"))
        )
        or (project.is_file() and "[tool.prefect" in project.read_text(encoding="utf-8"))
    )
