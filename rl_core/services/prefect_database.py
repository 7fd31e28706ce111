"""The database of the home's Prefect servers, looked at before one starts: a damaged file is set
aside, and one of a newer Prefect is refused. It holds the history that the UI shows, and nothing
that a run needs."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import closing, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from rl_core.errors import StorageError
from rl_core.runtime.home import Home

ELSEWHERE = ("PREFECT_SERVER_DATABASE_CONNECTION_URL", "PREFECT_API_DATABASE_CONNECTION_URL")
"""Settings that name another database."""
PARTS = ("", "-wal", "-shm", "-journal")
"""Ends of the names of the files of one database."""
_MIGRATIONS = "server/database/_migrations/versions/sqlite"
"""Folder in Prefect's package with a file for each change of the tables."""
_REVISION = re.compile(r"^revision\b[^=\n]*=\s*[\"'](\w+)[\"']", re.MULTILINE)


def database_file(home: Home) -> Path | None:
    """Return the database of the servers that this home starts; None for one that is named by
    Prefect's own settings."""
    if any(os.environ.get(name) for name in ELSEWHERE):
        return None
    return Path(home.environment()["PREFECT_HOME"]).absolute() / "prefect.db"


def set_aside_if_damaged(home: Home) -> str | None:
    """Rename the home's Prefect database if it cannot be read. Returns: a sentence that says so.

    Raises: StorageError when there is a file where the folder of the database should be, or when a
    newer Prefect has changed the tables: its server may be running, and it can read them again.
    """
    file = database_file(home)
    if file is None:
        return None
    if file.parent.exists() and not file.parent.is_dir():
        raise StorageError(f"{file.parent}: a file where a folder is needed; move it away")
    damage = _damage(file)
    if damage is None:
        if revision := _unknown_revision(file):
            raise StorageError(
                f"{file} is of a newer Prefect than {version('prefect')}, which is installed (its "
                f"tables have the unknown revision {revision}); install that Prefect again, or "
                "move the file away: the Prefect UI then begins a new history, and runs go on"
            )
        return None
    aside = file.with_name(f"prefect.db.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    for part in PARTS:
        with suppress(FileNotFoundError):  # there is none, or another run moved it just now
            file.with_name(file.name + part).rename(aside.with_name(aside.name + part))
    return (
        f"{file} could not be read ({damage}) and is now {aside.name}; the Prefect UI begins a new "
        "history, and runs go on"
    )


def _damage(file: Path) -> str | None:
    if not file.is_file() or file.stat().st_size == 0:
        return None
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
            database.execute("BEGIN")  # until it ends, no writer is half through a page
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return _missing_end(file)
    except sqlite3.OperationalError:
        return None  # such as locked by a server that runs
    except sqlite3.DatabaseError as error:
        return str(error)


def _missing_end(file: Path) -> str | None:
    """Return how much of a cut file is left; None if nothing is missing."""
    with file.open("rb") as opened:
        header = opened.read(100)
    page = int.from_bytes(header[16:18], "big")
    whole = int.from_bytes(header[28:32], "big") * (65536 if page == 1 else page)
    if header[24:28] != header[92:96]:
        return None  # the number of pages was not written by the last writer, and need not be right
    wal = file.with_name(f"{file.name}-wal")
    if wal.is_file() and wal.stat().st_size:
        return None  # a server at work may be writing the pages that are missing
    if file.stat().st_size < whole:
        return f"{file.stat().st_size} bytes are left of {whole}"
    return None


def _unknown_revision(file: Path) -> str | None:
    """Return the revision of the tables if the installed Prefect has no such migration. Those are
    read as text, since importing Prefect takes seconds."""
    if not file.is_file() or file.stat().st_size == 0:
        return None
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError:
        return None  # locked, or without the table: the first migration has not ended
    package = find_spec("prefect")
    if found is None or package is None or not package.submodule_search_locations:
        return None
    folder = Path(package.submodule_search_locations[0]) / _MIGRATIONS
    known = {
        revision
        for path in folder.glob("*.py")
        for revision in _REVISION.findall(path.read_text(encoding="utf-8"))
    }
    return None if not known or found[0] in known else str(found[0])
