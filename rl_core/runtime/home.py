"""Location of local state: one folder, `.rl-train/` in the working directory or `RL_TRAIN_HOME`."""

import json
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from rl_core.errors import StorageError
from rl_core.runtime.home_keys import MLFLOW_SERVER, key_of, prefect_password
from rl_core.runtime.process_record import find_process
from rl_core.runtime.secrets import redact_logs
from rl_core.runtime.user_paths import real_path


def sqlite_url(path: Path, driver: str = "pysqlite") -> str:
    """Return the address of an SQLite file for SQLAlchemy, which ends a plain path at a `?`."""
    if "?" not in str(path):
        return f"sqlite:///{path}"
    # With the driver named, since MLflow makes folders of what stands behind `sqlite:///`.
    return f"sqlite+{driver}:///file:{quote(str(path))}?uri=true"


SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
    # What workers print is logged by `rl_core.workers`, and belongs to the flow run.
    "PREFECT_LOGGING_EXTRA_LOGGERS": "rl_core",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    # A server that is away for some minutes is asked again: after 2, 4, 8, … seconds, 8.5
    # minutes in all.
    "PREFECT_CLIENT_MAX_RETRIES": "8",
    "DO_NOT_TRACK": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # Ray starts workers at nice 15, which starves training on a busy machine.
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Settings of other packages that keep them local and silent, of any home. Some are read when the
package is imported."""
PROBED_BYTES = 2**20
"""Bytes that fit on the disk of a home in which something is to be run."""
DEPLOYED = "deployed"
"""Key of `services.json` for the digest of what was deployed; all others are services."""
_KEYS = {"pid": int, "started": int | float, "url": str, "log": str}


def _is_record(name: str, entry: object) -> bool:
    """Return True if an entry of `services.json` says where a service of ours runs."""
    if name not in ("prefect", "mlflow") and not name.startswith("worker-"):
        return False
    if not isinstance(entry, dict) or entry.keys() != _KEYS.keys():
        return False
    if not all(isinstance(entry[key], kind) for key, kind in _KEYS.items()):
        return False
    if not 0 < entry["pid"] < 2**31:
        return False
    try:
        return name.startswith("worker-") or urlsplit(entry["url"]).port is not None
    except ValueError:
        return False


def _same_server(one: str, other: str) -> bool:
    return urlsplit(one)[:2] == urlsplit(other)[:2]


@dataclass(frozen=True)
class Home:
    """The local state folder and its subfolders."""

    root: Path

    @classmethod
    def default(cls) -> "Home":
        """Return `RL_TRAIN_HOME` if set, else `.rl-train` in the working directory. Raises:
        StorageError for an address: databases and locks need a disk."""
        text = os.environ.get("RL_TRAIN_HOME") or ".rl-train"
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
            raise StorageError(
                f"RL_TRAIN_HOME: {text} is no folder, and databases and locks need a disk; set it "
                f"to a folder of this machine, and keep runs elsewhere by placement.storage={text}"
            )
        return cls(real_path(text))

    @property
    def mlflow_uri(self) -> str:
        return os.environ.get("MLFLOW_TRACKING_URI") or sqlite_url(self.root / "mlflow.db")

    @property
    def mlflow_artifacts(self) -> Path:
        return self.root / "mlflow-artifacts"

    @property
    def artifact_location(self) -> Path | None:
        """Folder of the artifacts of a database file in this home; None leaves that to the MLflow
        server."""
        if self.mlflow_uri.startswith("sqlite"):
            return self.mlflow_artifacts
        return None

    @property
    def prefect(self) -> Path:
        return self.root / "prefect"

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def models(self) -> Path:
        return self.root / "models"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def locks(self) -> Path:
        """Files that say which process works on a run."""
        return self.root / "locks"

    @property
    def evaluations(self) -> Path:
        """Root of the evaluations without training, one folder each, named by its MLflow run."""
        return self.root / "evaluations"

    @property
    def services(self) -> Path:
        """Folder with the records and logs of the services that `rl-train up` started."""
        return self.root / "services.json"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def mlflow_ui(self) -> str:
        """Address of the MLflow UI; empty if no server is known."""
        if self.mlflow_uri.startswith("http"):
            return self.mlflow_uri
        return self._served("mlflow")

    @property
    def prefect_ui(self) -> str:
        """Address of the Prefect server that `rl-train up` started; empty if it does not run."""
        return self._served("prefect")

    def served_addresses(self) -> list[str]:
        """Return the addresses of the servers that `rl-train up` started and whose processes are
        there."""
        return [url for name in ("prefect", "mlflow") if (url := self._served(name))]

    def _served(self, name: str) -> str:
        """Return the address of a service that `rl-train up` started; empty if it does not run."""
        entry = self.service_records().get(name)
        if entry is None or not find_process(entry["pid"], entry["started"]):
            return ""
        return entry["url"]

    def service_records(self) -> dict[str, Any]:
        """Return what `services.json` says of the services that were started; empty if there is no
        such file. Raises: StorageError when it is damaged."""
        try:
            found = json.loads(self.services.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StorageError(
                f"{self.services}: cannot be read ({error}); end the services that rl-train up "
                "started by hand, and remove it"
            ) from error
        if not isinstance(found, dict):
            raise StorageError(f"{self.services}: expected an object, got {found!r:.80}; remove it")
        for name, entry in found.items():
            if name != DEPLOYED and not _is_record(name, entry):
                raise StorageError(
                    f"{self.services}: {name}: {entry!r:.120} is no record of a service; end the "
                    "services that rl-train up started by hand, and remove it"
                )
        return found

    def environment(self) -> dict[str, str]:
        """Return `defaults`, with the user's own settings in place of theirs."""
        return {key: os.environ.get(key, value) for key, value in self.defaults().items()}

    def check_writable(self) -> None:
        """Check that files can be written here, before servers fail at it with words of their own.

        Raises: StorageError.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root) as file:
                file.write(bytes(PROBED_BYTES))
        except OSError as error:
            raise StorageError(
                f"the home {self.root} cannot be written to: {error.strerror}; free some space, or "
                "set RL_TRAIN_HOME to a folder of a disk that can be"
            ) from error

    def defaults(self) -> dict[str, str]:
        """Return the settings that keep services local and silent."""
        defaults = SETTINGS | {
            "RL_TRAIN_HOME": str(self.root),
            "PREFECT_HOME": str(self.prefect),
            "MLFLOW_TRACKING_URI": self.mlflow_uri,
        }
        if "?" in str(self.prefect):
            defaults["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = sqlite_url(
                self.prefect / "prefect.db", "aiosqlite"
            )
        if prefect := self._served("prefect"):
            defaults["PREFECT_API_URL"] = f"{prefect}/api"
            # A server of somebody else's gets no key of this home.
            if _same_server(os.environ.get("PREFECT_API_URL", prefect), prefect):
                defaults["PREFECT_API_AUTH_STRING"] = prefect_password(self.root)
        if (mlflow := self._served("mlflow")) and _same_server(self.mlflow_uri, mlflow):
            defaults["MLFLOW_TRACKING_TOKEN"] = key_of(self.root, MLFLOW_SERVER)
        return defaults

    def activate(self) -> None:
        """Create the folder, export `environment()` before Prefect, Ray or MLflow is imported, and
        hide secrets in logs.

        Raises: StorageError when the folder cannot be created.
        """
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = f"{error.strerror}; set RL_TRAIN_HOME to a folder of your own"
            raise StorageError(f"cannot make {self.root}: {reason}") from error
        os.environ.update(self.environment())
        redact_logs()
