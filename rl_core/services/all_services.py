"""Starting, finding and stopping all services together. `services.json` records the running ones;
logs are next to it."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from filelock import FileLock

from rl_core.data.store.atomic import atomic_write_json
from rl_core.errors import ServiceError
from rl_core.runtime.home import DEPLOYED, Home
from rl_core.runtime.process_record import stop_tree
from rl_core.services import catalogue
from rl_core.services.exposure import LOCALHOST, check_exposure
from rl_core.services.kept_database import begin_with_kept, keep_for_next
from rl_core.services.own_deployment import project_file
from rl_core.services.ports import free_port
from rl_core.services.prefect_database import set_aside_if_damaged
from rl_core.services.service import Record, Service, Start, State
from rl_core.tracking.database import ensure_database

PROJECT = ("--prefect-file", str(catalogue.PROJECT_FILE))
"""Argument of `prefect deploy`, whose working directory is where runs find the code."""
Say = Callable[[str], None]


@dataclass(frozen=True)
class Status:
    """A service and its state."""

    name: str
    state: State
    record: Record | None


class Stack:
    """The services of one home folder."""

    def __init__(self, home: Home, say: Say) -> None:
        """Create the stack.

        Args: say: receives progress messages, a line at a time.
        """
        self.home, self._say = home, say
        self._starts: list[Start] = []

    def up(self, host: str = LOCALHOST) -> None:
        """Start the services that do not run; leave running ones alone.

        Raises: ServiceError when a service does not come up (services started by this call are
        stopped again), or when others could reach them without a password.
        """
        check_exposure(host)
        with self._locked():
            before = self._records()
            try:
                self._start_all(host)
            except BaseException:
                self._stop([name for name in self._records() if name not in before])
                raise

    def deploy(self, prefect_url: str, entry: dict[str, object] | None = None) -> None:
        """Create missing work pools on a server, and deploy there.

        Args: entry: the one deployment; unset is all of `prefect.yaml`. Raises: ServiceError.
        """
        own = {"PREFECT_API_URL": f"{prefect_url}/api"}
        self._ensure_pools(prefect_url, own)
        if entry is None:
            self._prefect(own, "deploy", "--all", *PROJECT)
            self._say(f"deployed to {prefect_url}")
            return
        with TemporaryDirectory() as folder:
            file = Path(folder) / "prefect.yaml"
            file.write_text(project_file(entry), encoding="utf-8")
            self._prefect(own, "deploy", "--all", "--prefect-file", str(file))
        self._say(f"deployed rl-train/{entry['name']} to {prefect_url}")

    def status(self) -> list[Status]:
        """Return every service that was started, in the order of their start."""
        records = self._records()
        prefect = records.get("prefect")
        found = []
        for name, record in records.items():
            service = self._service(name, record, prefect.url if prefect else "")
            found.append(Status(name, service.state(record), record))
        return found

    def ended(self) -> list[str]:
        """Return the names of services whose process is gone."""
        return [name for name, record in self._records().items() if record.process is None]

    def down(self) -> list[str]:
        """Stop everything, the last started first.

        Returns: names of the services that were running.
        """
        with self._locked():
            return self._stop(list(self._records()))

    def _start_all(self, host: str) -> None:
        if said := set_aside_if_damaged(self.home):
            self._say(said)
        begin_with_kept(self.home)
        prefect = self._ensure(
            "prefect", lambda port: catalogue.prefect_server(self.home, host, port), host
        )
        self._wait_for_starts()
        keep_for_next(self.home)
        # The others wait for disks and for one another, so they start side by side.
        if self.home.mlflow_uri.startswith("http"):
            self._say(f"mlflow is the one at MLFLOW_TRACKING_URI, {self.home.mlflow_uri}")
        else:
            ensure_database(self.home.mlflow_uri)
            self._ensure(
                "mlflow", lambda port: catalogue.mlflow_server(self.home, host, port), host
            )
        access = catalogue.access_to_prefect(self.home, prefect.url)
        self._ensure_pools(prefect.url, access)
        for pool in catalogue.WORK_POOLS:
            service = catalogue.worker(self.home, pool.name, prefect.url)
            self._ensure(service.name, lambda _port, service=service: service, host)
        self._ensure_deployments(prefect.url, access)
        self._wait_for_starts()

    def _wait_for_starts(self) -> None:
        for start in self._starts:
            self._say(f"{start.service.name} runs at {start.wait().url}")
        self._starts.clear()

    def _ensure(self, name: str, make: Callable[[int], Service], host: str) -> Record:
        """Return the record of a running service: the present one if it answers, else of one that
        starts."""
        record = self._records().get(name)
        if record is not None and record.process is not None:
            if make(_port_of(record.url)).answers_soon():
                self._say(f"{name} runs at {record.url}")
                return record
            self._stop([name])
        # Workers, browsers and runs that are under way know the address that it had.
        usual = catalogue.USUAL_PORTS.get(name, 0)
        service = make(free_port(host, _port_of(record.url) if record is not None else usual))
        self._say(f"starting {name}")
        start = service.start(catalogue.REPOSITORY, self.home.logs / f"{name}.log")
        self._save({name: start.record.model_dump()})
        self._starts.append(start)
        return start.record

    def _ensure_pools(self, prefect_url: str, access: dict[str, str]) -> None:
        """Create the missing pools; changes that somebody made to existing ones are kept.

        Args: access: environment with the server's address and password.
        """
        password = access.get("PREFECT_API_AUTH_STRING", "")
        for pool in catalogue.WORK_POOLS:
            url = f"{prefect_url}/api/work_pools/{pool.name}"
            if catalogue.ask(url, password=password) is None:
                self._prefect(
                    access, "work-pool", "create", pool.name, "--type", catalogue.POOL_KIND
                )
                limits = {"concurrency_limit": pool.at_once, "description": pool.description}
                catalogue.tell("PATCH", url, limits, password)
                self._say(f"work pool {pool.name} created")

    def _ensure_deployments(self, prefect_url: str, access: dict[str, str]) -> None:
        """Deploy everything if `prefect.yaml` is not the one that was deployed to this server's
        database."""
        digest = hashlib.sha256(catalogue.PROJECT_FILE.read_bytes()).hexdigest()
        if self.home.service_records().get(DEPLOYED) == digest and catalogue.ask(
            f"{prefect_url}/api/deployments/count", {}, access["PREFECT_API_AUTH_STRING"]
        ):
            return
        self._prefect(access, "deploy", "--all", *PROJECT)
        self._save({DEPLOYED: digest})
        self._say("deployments are up to date")

    def _prefect(self, access: dict[str, str], *arguments: str) -> None:
        environment = catalogue.base_environment(self.home) | access
        command = [sys.executable, "-m", "prefect", "--no-prompt", *arguments]
        done = subprocess.run(
            command,
            cwd=catalogue.REPOSITORY,
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServiceError(f"prefect {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")

    def _service(self, name: str, record: Record, prefect_url: str) -> Service:
        """Return the service of a record, to ask whether it answers."""
        if name.startswith("worker-"):
            return catalogue.worker(self.home, name.removeprefix("worker-"), prefect_url)
        make = {"prefect": catalogue.prefect_server, "mlflow": catalogue.mlflow_server}[name]
        return make(self.home, record.url.split("/")[2].rpartition(":")[0], _port_of(record.url))

    def _stop(self, names: list[str]) -> list[str]:
        stopped = []
        for name in reversed(names):
            process = self._records()[name].process
            if process is not None:
                self._say(f"stopping {name}")
                stop_tree(process)
                stopped.append(name)
            self._forget(name)
        return stopped

    def _records(self) -> dict[str, Record]:
        """Return the records in the order of their start."""
        entries = self.home.service_records()
        entries.pop(DEPLOYED, None)
        order = [name for name in catalogue.USUAL_PORTS if name in entries]
        records: dict[str, Record] = {}
        for name in dict.fromkeys([*order, *sorted(entries)]):
            records[name] = Record.model_validate(entries[name])
        return records

    def _save(self, entries: dict[str, object]) -> None:
        atomic_write_json(self.home.services, self.home.service_records() | entries)

    def _forget(self, name: str) -> None:
        entries = self.home.service_records()
        entries.pop(name, None)
        atomic_write_json(self.home.services, entries)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Allow one `up` or `down` at a time."""
        self.home.root.mkdir(parents=True, exist_ok=True)
        with FileLock(self.home.root / "services.lock"):
            yield


def _port_of(url: str) -> int:
    return int(url.split("/")[2].rpartition(":")[2])
