"""A damaged database of Prefect's is set aside, with its name; a sound one is left alone, and one
of a newer Prefect refused."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import prefect
import pytest

from flows.exit_codes import ExitCode
from rl_core.errors import StorageError
from rl_core.runtime.home import Home
from rl_core.services.prefect_database import ELSEWHERE, set_aside_if_damaged
from tests.command import rl_train


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    for name in ELSEWHERE:
        monkeypatch.delenv(name, raising=False)
    made = Home(tmp_path)
    monkeypatch.setenv("PREFECT_HOME", str(made.prefect))
    made.prefect.mkdir()
    with closing(sqlite3.connect(made.prefect / "prefect.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE run (text)")
        database.executemany("INSERT INTO run VALUES (?)", [("x" * 500,)] * 200)
        database.commit()
    return made


def test_a_sound_one_stays_also_while_it_is_written(home: Home) -> None:
    assert set_aside_if_damaged(home) is None
    with closing(sqlite3.connect(home.prefect / "prefect.db", isolation_level=None)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        writer.executemany("INSERT INTO run VALUES (?)", [("y" * 500,)] * 500)
        assert set_aside_if_damaged(home) is None


@pytest.mark.parametrize("damage", ["no database", "cut"])
def test_a_damaged_one_is_set_aside(home: Home, damage: str) -> None:
    file = home.prefect / "prefect.db"
    content = file.read_bytes()
    damaged = content[: len(content) // 2] if damage == "cut" else b"no database" * 99
    file.write_bytes(damaged)
    said = set_aside_if_damaged(home)
    assert said is not None and str(file) in said
    (aside,) = (one for one in home.prefect.iterdir() if f"{one.name};" in said)
    assert aside.read_bytes() == damaged and not file.exists()
    assert set_aside_if_damaged(home) is None


def test_a_number_of_pages_that_the_last_writer_left_alone_is_not_believed(home: Home) -> None:
    """Of SQLite's format: it holds only while the counter of changes beside it is the same."""
    file = home.prefect / "prefect.db"
    content = bytearray(file.read_bytes())
    content[28:32] = (10**6).to_bytes(4, "big")
    content[92:96] = (int.from_bytes(content[24:28], "big") - 1).to_bytes(4, "big")
    file.write_bytes(content)
    assert set_aside_if_damaged(home) is None and file.read_bytes() == content


def test_a_file_in_the_place_of_the_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    Home(tmp_path).prefect.write_text("x")
    with pytest.raises(StorageError, match="a file where a folder is needed"):
        set_aside_if_damaged(Home(tmp_path))


def of_revision(home: Home, revision: str) -> Path:
    """The home's database, with the revision that Prefect's migrations would have left."""
    file = home.prefect / "prefect.db"
    with closing(sqlite3.connect(file)) as database:
        database.execute("CREATE TABLE alembic_version (version_num text)")
        database.execute("INSERT INTO alembic_version VALUES (?)", (revision,))
        database.commit()
    return file


def test_one_of_a_newer_prefect_is_refused_and_stays(home: Home) -> None:
    file = of_revision(home, "0123456789ab")
    before = file.read_bytes()
    with pytest.raises(StorageError, match="unknown revision 0123456789ab"):
        set_aside_if_damaged(home)
    assert file.read_bytes() == before


def test_revisions_that_the_installed_prefect_knows_pass(home: Home) -> None:
    first = Path(prefect.__file__).parent / "server/database/_migrations/versions/sqlite"
    (named, *_) = sorted(first.glob("*.py"))
    (revision,) = re.findall(r"^revision.*[\"'](\w+)[\"']", named.read_text(), re.MULTILINE)
    of_revision(home, revision)
    assert set_aside_if_damaged(home) is None


@pytest.mark.parametrize("command", [["run", "smoke/text"], ["up"]])
def test_a_command_that_would_start_the_server_says_so(home: Home, command: list[str]) -> None:
    file = of_revision(home, "0123456789ab")
    done = rl_train(home.root, *command, PREFECT_HOME=str(home.prefect))
    said = done.stdout + done.stderr
    assert done.returncode == ExitCode.USER_ERROR, said
    assert f"{file} is of a newer Prefect than {prefect.__version__}" in said
    assert "Traceback" not in said and not list(home.root.glob("runs/*"))
