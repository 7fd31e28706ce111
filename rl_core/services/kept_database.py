"""The empty database of a Prefect server, kept on this machine for the next home.

Prefect makes its tables in a hundred migrations, one after the other, and registers its block
types: ten of the fifteen seconds that a server takes to start in a new home. The first home of a
machine keeps a copy, without a key and without history, in the user's cache folder; later homes
begin with it. Whatever goes wrong here, the server makes its tables as ever.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock, Timeout

from rl_core.runtime.home import Home
from rl_core.services.prefect_database import PARTS, database_file

HISTORY = ("flow", "flow_run", "task_run", "deployment", "work_pool", "block_document", "variable")
"""Tables that are empty as long as nobody has used the server."""
OF_ONE_SERVER = ("configuration", "events", "event_resources", "log")
"""Tables with what a server wrote at its start: the key of its secrets among it."""
LOCKED_S = 5.0
"""Seconds that another process is waited for; then the server makes its own tables."""


def begin_with_kept(home: Home) -> None:
    """Give a home without a Prefect database the kept one, if there is one."""
    file = database_file(home)
    with suppress(OSError, sqlite3.Error, Timeout):
        if file is None or not (kept := kept_file()).is_file():
            return
        # What is left of a database that was removed would be played back into the copy.
        if any(file.with_name(file.name + part).exists() for part in PARTS):
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            _copy(kept, file)
        except sqlite3.OperationalError:
            raise  # such as a full disk
        except sqlite3.DatabaseError:
            kept.unlink()  # damaged; this home's will be kept in its place
            raise


def keep_for_next(home: Home) -> None:
    """Keep a copy of the home's database, if nobody has used its server and none is kept. Its
    server answers."""
    file = database_file(home)
    with suppress(OSError, sqlite3.Error, Timeout):
        if file is None or not file.is_file() or (kept := kept_file()).exists() or _is_used(file):
            return
        kept.parent.mkdir(parents=True, exist_ok=True)
        _copy(file, kept)


def kept_file() -> Path:
    """Return the place of the copy. Raises: OSError when this user has no home folder."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(folder):
        raise FileNotFoundError(folder)
    return Path(folder) / "rl-train" / f"prefect-{version('prefect')}.db"


def _copy(source: Path, place: Path) -> None:
    """Copy a database, without what is of one server alone, to a place where there is none.

    Raises: sqlite3.Error when the source is damaged or used, OSError, Timeout.
    """
    building = place.with_name(f".build-{place.name}")
    with FileLock(place.with_name(f"{place.name}.lock"), timeout=LOCKED_S):
        building.unlink(missing_ok=True)  # of a process that was killed
        try:
            with (
                closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True)) as old,
                closing(sqlite3.connect(building)) as new,
            ):
                old.backup(new)
                _make_empty(new)
            building.chmod(0o600)
            with suppress(FileExistsError):  # another one was quicker
                os.link(building, place)
        finally:
            building.unlink(missing_ok=True)


def _make_empty(database: sqlite3.Connection) -> None:
    """Take out what is of one server. Raises: sqlite3.Error when it is damaged or was used."""
    (found,) = database.execute("PRAGMA quick_check").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(found)
    if _has_history(database):
        raise sqlite3.DataError("the server was used meanwhile")
    database.execute("PRAGMA journal_mode = DELETE")
    for table in OF_ONE_SERVER:
        database.execute(f"DELETE FROM {table}")
    database.commit()
    # What is deleted is still in the file's free pages.
    database.execute("VACUUM")


def _is_used(file: Path) -> bool:
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
        return _has_history(database)


def _has_history(database: sqlite3.Connection) -> bool:
    return any(database.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in HISTORY)
