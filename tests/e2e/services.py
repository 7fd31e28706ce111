"""A Prefect server, its work pools and deployments, and a worker: real processes that tests stop
and start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from rl_core.runtime.home import Home, sqlite_url
from rl_core.runtime.home_keys import MLFLOW_SERVER, key_of
from rl_core.services import catalogue
from rl_core.services.all_services import Stack
from rl_core.services.exposure import LOCALHOST
from rl_core.services.ports import free_port
from rl_core.tracking.database import ensure_database
from tests.e2e.conftest import REPOSITORY
from tests.e2e.prefect_api import DEADLINE_S, PrefectApi, wait_until


@dataclass
class Services:
    """A Prefect server and a worker, ended by their own handles."""

    folder: Path
    port: int
    extra: dict[str, str] = field(default_factory=dict)
    """Environment variables beside those of a home of its own."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def api(self) -> PrefectApi:
        return PrefectApi(f"http://127.0.0.1:{self.port}/api")

    @property
    def environment(self) -> dict[str, str]:
        own = catalogue.base_environment(Home(self.home)) | {
            "PREFECT_HOME": str(self.folder / "prefect"),
            "PREFECT_API_URL": self.api.url,
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "RL_TRAIN_HOME": str(self.home),
            "MLFLOW_TRACKING_TOKEN": key_of(self.home, MLFLOW_SERVER),
        }
        return os.environ | own | self.extra

    def start_server(self) -> None:
        """Start it, for the first time or again, on the same port and database."""
        self._start("server", "start", "--host", "127.0.0.1", "--port", str(self.port))
        wait_until(lambda: reachable(self.port), "the Prefect server")

    def deploy(self) -> None:
        """Make the work pools and deploy everything, as `rl-train deploy` does."""
        Stack(Home(self.home), lambda _: None).deploy(f"http://127.0.0.1:{self.port}")

    def start_worker(self) -> None:
        """Start what takes runs from the pool of trainings."""
        self._start("worker", "start", "--pool", "rl-train")

    def start_mlflow(self, port: int) -> None:
        """Start an MLflow server over this home's database, for the first time or again."""
        home = Home(self.home)
        service = catalogue.mlflow_server(home, "127.0.0.1", port)
        database = sqlite_url(home.root / "mlflow.db")
        ensure_database(database)
        own = {**service.environment, "MLFLOW_TRACKING_URI": database}
        self._launch("mlflow", [*service.command], own)
        wait_until(service.answers, "the MLflow server")

    def kill(self, name: str) -> None:
        """kill -9 a server with everything below it; the others go on."""
        process = self.processes.pop(name)
        below = psutil.Process(process.pid).children(recursive=True)
        for one in (process, *below):
            one.kill()
        process.wait(15)
        psutil.wait_procs(below, timeout=15)

    def _start(self, *arguments: str) -> None:
        self._launch(arguments[0], [sys.executable, "-m", "prefect", *arguments])

    def _launch(self, name: str, command: list[str], own: Mapping[str, str] | None = None) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=self.environment | {**(own or {})},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def prefect(self, *arguments: str) -> str:
        """What a command of Prefect's says."""
        command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def close(self) -> None:
        """End all of it, the last started first."""
        for process in reversed([*self.processes.values()]):
            below = psutil.Process(process.pid).children(recursive=True)
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(15)
            for child in below:
                if child.is_running():
                    child.kill()


@contextmanager
def running_services(folder: Path, extra: dict[str, str]) -> Iterator[Services]:
    """Server, deployments and worker, until the end of the block."""
    services = Services(folder, free_port(LOCALHOST), extra)
    try:
        services.start_server()
        services.deploy()
        services.start_worker()
        yield services
    finally:
        services.close()


def reachable(port: int) -> bool:
    """Whether a server of Prefect's answers there."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}/api/health").status_code == 200
    except httpx.HTTPError:
        return False
