"""A home begins with the empty database that an earlier home's server left on this machine, which
holds nothing of that server but its tables and Prefect's own block types."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from prefect.context import refresh_global_settings_context

from flows import local_api
from rl_core.runtime.home import Home
from rl_core.services.exposure import LOCAL_API
from rl_core.services.kept_database import begin_with_kept, keep_for_next, kept_file
from rl_core.services.prefect_database import ELSEWHERE

UPGRADE = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "--yes"]


@pytest.fixture(scope="module")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that Prefect's own command has made."""
    folder = tmp_path_factory.mktemp("prefect")
    own = os.environ | {"PREFECT_HOME": str(folder)}
    subprocess.run(UPGRADE, env=own, check=True, capture_output=True)
    return folder / "prefect.db"


@pytest.fixture
def home_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Home]:
    """Makes homes of a machine on which nothing is kept, and has this process work in them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
    for name in (*ELSEWHERE, *local_api.DECIDING, "PREFECT_API_AUTH_STRING", LOCAL_API):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def make(name: str) -> Home:
        home = Home(tmp_path / name)
        monkeypatch.setenv("RL_TRAIN_HOME", str(home.root))
        monkeypatch.setenv("PREFECT_HOME", str(home.prefect))
        return home

    return make


def used_by_a_server(home: Home, migrated: Path, *statements: str) -> Path:
    """Put a database in a home, with what a server writes into it."""
    file = home.prefect / "prefect.db"
    file.parent.mkdir(parents=True)
    file.write_bytes(migrated.read_bytes())
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        key = "('ENCRYPTION_KEY', '\"of this server\"', 'a', '2026-01-01', '2026-01-01')"
        names = "(key, value, id, created, updated)"
        for statement in (f"INSERT INTO configuration {names} VALUES {key}", *statements):
            database.execute(statement)
        database.commit()
    return file


def tables(file: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(file)) as database:
        return database.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


@pytest.mark.slow
def test_the_next_home_gets_the_tables_without_keys(
    home_of: Callable[[str], Home], migrated: Path
) -> None:
    first = home_of("first")
    used_by_a_server(first, migrated)
    keep_for_next(first)
    second = home_of("second")
    begin_with_kept(second)
    file = second.prefect / "prefect.db"
    assert tables(file) == tables(migrated)
    assert b"of this server" not in file.read_bytes()
    assert b"of this server" not in kept_file().read_bytes()
    assert kept_file().stat().st_mode & 0o077 == 0
    assert not [*second.prefect.glob(".build-*"), *kept_file().parent.glob(".build-*")]


@pytest.mark.slow
def test_a_server_that_was_used_is_not_kept(home_of: Callable[[str], Home], migrated: Path) -> None:
    home = home_of("home")
    values = "('a', 'mine', '2026-01-01', '2026-01-01', '{}', '[]')"
    names = "(id, name, created, updated, labels, tags)"
    used_by_a_server(home, migrated, f"INSERT INTO flow {names} VALUES {values}")
    keep_for_next(home)
    assert not kept_file().exists()


@pytest.mark.parametrize("damage", ["text", "cut"])
def test_a_damaged_copy_is_given_to_nobody_and_goes(
    home_of: Callable[[str], Home], migrated: Path, damage: str
) -> None:
    first = home_of("first")
    used_by_a_server(first, migrated)
    keep_for_next(first)
    whole = kept_file().read_bytes()
    kept_file().write_bytes(b"no database" * 99 if damage == "text" else whole[: len(whole) // 2])
    second = home_of("second")
    begin_with_kept(second)
    assert not (second.prefect / "prefect.db").exists()
    assert not kept_file().exists()
    keep_for_next(home_of("first"))
    assert tables(kept_file()) == tables(migrated)


def test_a_history_stays_as_it_is(home_of: Callable[[str], Home], migrated: Path) -> None:
    first = home_of("first")
    file = used_by_a_server(first, migrated)
    keep_for_next(first)
    before = file.read_bytes()
    begin_with_kept(first)
    assert file.read_bytes() == before


def test_a_copy_does_not_join_what_is_left_of_another_database(
    home_of: Callable[[str], Home], migrated: Path
) -> None:
    """SQLite plays a log back into whatever file of its name it finds."""
    first = home_of("first")
    used_by_a_server(first, migrated)
    keep_for_next(first)
    second = home_of("second")
    left = second.prefect / "prefect.db-wal"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of a database that was removed")
    begin_with_kept(second)
    assert [*second.prefect.iterdir()] == [left]


@pytest.mark.parametrize("folder", ["relative", "/proc/nowhere"])
def test_a_cache_folder_that_cannot_be_is_done_without(
    home_of: Callable[[str], Home], migrated: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    home = home_of("home")
    used_by_a_server(home, migrated)
    monkeypatch.setenv("XDG_CACHE_HOME", folder)
    keep_for_next(home)
    begin_with_kept(home_of("second"))


@pytest.mark.slow
def test_a_server_starts_on_what_another_one_kept(home_of: Callable[[str], Home]) -> None:
    keys = []
    for name in ("first", "second"):
        home = home_of(name)
        assert kept_file().exists() == (name == "second")
        os.environ.pop("PREFECT_API_URL", None)
        api = local_api.start_local_api()
        assert api is not None
        if name == "second":
            assert (home.prefect / "prefect.db").stat().st_size > 500_000, "it makes its own"
        try:
            api.wait()
        finally:
            api.stop()
        with closing(sqlite3.connect(home.prefect / "prefect.db")) as database:
            keys.append(database.execute("SELECT value FROM configuration").fetchall())
    assert not set(keys[0]) & set(keys[1])
    refresh_global_settings_context()
