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
import sys
import threading
import time
from pathlib import Path

from rl_core.errors import ServiceError
from rl_core.runtime.child_reaper import end_last
from rl_core.runtime.home import Home
from rl_core.runtime.home_keys import prefect_password
from rl_core.services.exposure import LOCAL_API, LOCALHOST
from rl_core.services.kept_database import begin_with_kept, keep_for_next
from rl_core.services.ports import free_port
from rl_core.services.prefect_database import set_aside_if_damaged

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
RESTARTS = 5
"""Times that a server that ended by itself is started again."""


class LocalApi:
    """A starting server. Create it before Prefect is imported, so that it starts meanwhile.

    A server that once answered and then ends by itself, such as for lack of memory, is started
    again at its address. Its database is a file, and Prefect's clients ask again for minutes, so
    the run goes on.
    """

    def __init__(self) -> None:
        from rl_core.services.catalogue import prefect_command

        self.port = free_port(LOCALHOST)
        self._stopping, self._change = False, threading.Lock()
        self._command = prefect_command(
            LOCALHOST, self.port, "--log-level", "error", "--lifespan", "on"
        )
        self.password = prefect_password(Home.default().root)
        self._environment = os.environ | AS_PREFECT_WOULD
        self._environment |= {"PREFECT_SERVER_API_AUTH_STRING": self.password}
        self.process = self._start()
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
        deadline, restarts = time.monotonic() + timeout_s, 0
        how = f"does not answer within {timeout_s:g} s"
        while time.monotonic() < deadline:
            if answers(f"{self.url}/health"):
                threading.Thread(target=self._keep_running, daemon=True, name="local API").start()
                keep_for_next(Home.default())
                return
            ended = self.process.poll()
            if ended is not None:
                # A signal is somebody's, or the system's for lack of memory.
                if self._stopping or ended >= 0 or restarts == RESTARTS:
                    how = f"ended with code {ended}"
                    break
                restarts += 1
                self._start_again(ended)
            time.sleep(POLL_S)
        raise ServiceError(
            f"the local Prefect API {how}; `rl-train up` starts one that stays and keeps a log"
        )

    def _start(self) -> subprocess.Popen[bytes]:
        # Ctrl-C is this process's to answer, which still has the run's end to report.
        process = subprocess.Popen(self._command, env=self._environment, start_new_session=True)
        end_last(process.pid)  # if this process is killed, its flow run is marked first
        return process

    def _keep_running(self) -> None:
        for _ in range(RESTARTS):
            ended = self.process.wait()
            with self._change:
                if self._stopping:
                    return
                self._start_again(ended)

    def _start_again(self, ended: int) -> None:
        self.process = self._start()
        _say(f"the local Prefect API ended with code {ended} and was started again")

    def stop(self) -> None:
        """Stop the server."""
        with self._change:
            self._stopping = True
        self.process.terminate()
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _say(text: str) -> None:
    from rl_core.trainers.progress import ProgressEvent, announce

    announce(ProgressEvent("note", text=text))


def start_local_api() -> LocalApi | None:
    """Start an API server and set `PREFECT_API_URL` to it.

    Returns: None if the user has Prefect settings, which are left to Prefect.
    """
    if _is_configured(Path(os.environ["PREFECT_HOME"])):
        return None
    if said := set_aside_if_damaged(Home.default()):
        print(said, file=sys.stderr)
    begin_with_kept(Home.default())
    api = LocalApi()
    os.environ |= {"PREFECT_API_URL": api.url, "PREFECT_API_AUTH_STRING": api.password}
    os.environ[LOCAL_API] = api.url
    if "prefect.context" in sys.modules:
        # As in a notebook. With what it read before, it would start a server of its own.
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()
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
