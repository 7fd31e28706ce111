"""MLflow clients, and the creation of a home's database file, which is complete or does not exist.

MLflow creates a missing database table by table over some seconds. If it is killed meanwhile, or
several processes do so at once, it leaves a file that no later command can use. So the file is
created in a temporary folder next to its place, by one process while others wait, and renamed into
place; and an incomplete file is reported before MLflow touches it.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from rl_core.data.store.atomic import storage_error, sync_path
from rl_core.data.store.lock import output_lock
from rl_core.errors import StorageError
from rl_core.runtime.home import sqlite_url

if TYPE_CHECKING:
    from mlflow import MlflowClient

BUSY_S = 60.0
"""Seconds that a look into the file waits for its writers."""
_whole: set[tuple[Path, int]] = set()
"""Files, with their inodes, that this process has found complete."""


def tracking_client(tracking_uri: str) -> MlflowClient:
    """Return a client whose registry is the tracking database itself.

    Raises: StorageError when the database is a file that cannot be created or used.
    """
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    # What fails in the database is raised as well, and then said once, in a sentence.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    ensure_database(tracking_uri)
    try:
        return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)
    except (MlflowException, ValueError) as error:
        raise StorageError(
            f"MLFLOW_TRACKING_URI {tracking_uri}: not an address of MLflow's "
            f"({str(error).strip().splitlines()[0]:.200}); give http://HOST:PORT or "
            "sqlite:///FILE, or unset it"
        ) from error


def ensure_database(tracking_uri: str) -> None:
    """Create the database file of `tracking_uri` if it is missing. A server, or another database,
    is left alone.

    Raises: StorageError when it cannot be created, or the existing file is not a complete database
    of this MLflow.
    """
    path = database_file(tracking_uri)
    if path is None:
        return
    if not _has_content(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(
                f"cannot make the folder {path.parent} of the MLflow database: {error}"
            ) from error
        with output_lock(_lock_file(path)):
            if not _has_content(path):
                _make(path)
    elif (path, path.stat().st_ino) not in _whole and (fault := fault_of(path)) is not None:
        raise StorageError(f"{fault.found}; {fault.fix}")
    _whole.add((path, path.stat().st_ino))


def is_missing(tracking_uri: str) -> bool:
    """Return True if `tracking_uri` is a database file that is not there, so that nothing is
    recorded in it; a question about it need not create one."""
    path = database_file(tracking_uri)
    return path is not None and not _has_content(path)


@contextmanager
def one_at_a_time(tracking_uri: str) -> Iterator[None]:
    """Make other processes that request the same database file wait during the block; a server is
    not locked."""
    ensure_database(tracking_uri)
    path = database_file(tracking_uri)
    if path is None:
        yield
        return
    with output_lock(_lock_file(path)):
        yield


def database_file(tracking_uri: str) -> Path | None:
    """Return the SQLite file that a tracking URI names; None for a server, another database, or one
    in memory."""
    from sqlalchemy.engine import make_url

    if not tracking_uri.startswith("sqlite"):
        return None
    named = make_url(tracking_uri).database
    if named in (None, "", ":memory:"):
        return None
    # As `sqlite_url` writes a path with a `?`.
    return Path(unquote(named[5:]) if named.startswith("file:") else named).absolute()


@dataclass(frozen=True)
class Fault:
    """Reason why a database file cannot be used."""

    found: str
    """Description of the problem."""
    fix: str
    """Fix of the problem."""


def fault_of(path: Path) -> Fault | None:
    """Return the problem of an existing database file, or None."""
    try:
        with closing(
            sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=BUSY_S)
        ) as database:
            found, used = _revisions(database), _is_used(database)
    except sqlite3.Error as error:
        return Fault(
            f"{path} cannot be read as an MLflow database ({error})",
            "restore a copy of it, or move it away",
        )
    head, known = _revisions_of_mlflow()
    if found == [head]:
        return None
    state = f"schema {', '.join(found) or 'none'}, where this MLflow has {head}"
    if not used:
        made = f"{path} was left half made by a process that ended early ({state}); no run is in it"
        return Fault(
            made, f"remove it (rm {shlex.quote(str(path))}), and the next command makes a new one"
        )
    if set(found) <= known:
        upgrade = shlex.join(["mlflow", "db", "upgrade", sqlite_url(path)])
        return Fault(
            f"{path} is of an older MLflow ({state})", f"copy the file, then run: {upgrade}"
        )
    return Fault(
        f"{path} is of another MLflow ({state})", "install the MLflow that wrote it, or a newer one"
    )


def _make(path: Path) -> None:
    """Create a complete database and move it into place. The caller holds the lock."""
    from mlflow.exceptions import MlflowException
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    from sqlalchemy.exc import SQLAlchemyError

    building = path.with_name(f".build-{path.name}")
    try:
        shutil.rmtree(building, ignore_errors=True)  # of a builder that was killed
        building.mkdir()
        made = building / path.name
        # MLflow tries a disk that fails again for two minutes.
        with closing(sqlite3.connect(made)) as probe:
            probe.execute("CREATE TABLE probe (a)")
            probe.execute("DROP TABLE probe")
        with _without_waiting_for_the_disk(made):
            store = SqlAlchemyStore(sqlite_url(made), str(path.parent / "mlflow-artifacts"))
            store.engine.dispose()
        sync_path(made)
        for of_another in ("-journal", "-wal", "-shm"):
            # Left beside a database that was removed; SQLite would play it back into the new one.
            path.with_name(path.name + of_another).unlink(missing_ok=True)
        os.replace(made, path)
        sync_path(path.parent)
    except OSError as error:
        raise storage_error(path, error) from error
    except (SQLAlchemyError, MlflowException, sqlite3.Error) as error:
        reason = str(error).strip().splitlines()[0]
        raise StorageError(f"cannot make the MLflow database {path}: {reason}") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def _without_waiting_for_the_disk(file: Path) -> Iterator[None]:
    """Have connections to a new database file sync nothing during the block.

    MLflow commits each of its migrations, which takes a slow disk many seconds. A file that is
    synced as a whole before it gets its name needs none of these syncs.
    """
    from sqlalchemy import event
    from sqlalchemy.engine import Engine

    def _connected(connection: object, _: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            (_, _, name), *_ = connection.execute("PRAGMA database_list")
            if name and Path(name) == file.resolve():
                connection.execute("PRAGMA synchronous = OFF")

    event.listen(Engine, "connect", _connected)
    try:
        yield
    finally:
        event.remove(Engine, "connect", _connected)


def _lock_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _has_content(path: Path) -> bool:
    """Return False for the empty file that SQLite leaves where a database was opened and nothing
    was written."""
    return path.is_file() and path.stat().st_size > 0


def _revisions(database: sqlite3.Connection) -> list[str]:
    """Return the schema revisions that the database declares; a complete one declares one
    revision."""
    if not _has_table(database, "alembic_version"):
        return []
    revisions: list[str] = []
    for row in database.execute("SELECT version_num FROM alembic_version ORDER BY 1"):
        revisions.append(row[0])
    return revisions


def _is_used(database: sqlite3.Connection) -> bool:
    """Return True if anything was recorded in the database."""
    tables = []
    for table in ("runs", "registered_models"):
        if _has_table(database, table):
            tables.append(table)
    return any(database.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in tables)


def _has_table(database: sqlite3.Connection, name: str) -> bool:
    wanted = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
    return database.execute(wanted, (name,)).fetchone() is not None


def _revisions_of_mlflow() -> tuple[str, set[str]]:
    """Return the schema revision that the installed MLflow writes, and all that it knows."""
    import mlflow
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(mlflow.__file__).parent / "store" / "db_migrations"))
    head = scripts.get_current_head()
    assert head is not None
    return head, {script.revision for script in scripts.walk_revisions()}
