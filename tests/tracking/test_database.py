"""A home's MLflow database is whole or not there, whoever made it, at whatever moment they were
killed."""

import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from rl_core.doctor import machine
from rl_core.doctor.finding import Level
from rl_core.errors import StorageError
from rl_core.runtime.home import Home
from rl_core.tracking.database import (
    _without_waiting_for_the_disk,
    database_file,
    ensure_database,
    fault_of,
    tracking_client,
)
from rl_core.tracking.run import TrackingRun

USE = (
    "import sys; from rl_core.tracking.run import TrackingRun; TrackingRun.open(sys.argv[1], "
    "'e', 'r').finish()"
)
FIRST_SCHEMA = "451aebb31d03"
"""MLflow's oldest."""
Damage = Callable[[Path], None]


def use(uri: str) -> subprocess.Popen[str]:
    """A process that opens a run there, as any command does."""
    return subprocess.Popen([sys.executable, "-c", USE, uri], stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database as it is made, with nothing in it."""
    path = tmp_path_factory.mktemp("made") / "mlflow.db"
    ensure_database(f"sqlite:///{path}")
    return path


@pytest.fixture
def copied(made: Path, tmp_path: Path) -> Path:
    return shutil.copy(made, tmp_path / "mlflow.db")


def test_a_new_database_stands_alone_in_its_place(made: Path):
    assert fault_of(made) is None
    assert {path.name for path in made.parent.iterdir()} == {"mlflow.db", ".mlflow.db.lock"}


def test_only_the_new_file_is_written_without_waiting_for_the_disk(tmp_path: Path):
    told = {}
    with _without_waiting_for_the_disk(tmp_path / "new.db"):
        for name in ("new.db", "other.db"):
            engine = create_engine(f"sqlite:///{tmp_path / name}")
            with engine.connect() as connection:
                told[name] = connection.exec_driver_sql("PRAGMA synchronous").scalar()
            engine.dispose()
    assert told == {"new.db": 0, "other.db": 2}


@pytest.mark.slow
def test_first_commands_at_the_same_time_share_one_database(tmp_path: Path):
    uri = f"sqlite:///{tmp_path}/fresh/mlflow.db"
    users = [use(uri) for _ in range(4)]
    said = [user.communicate(timeout=200)[1] for user in users]
    assert [user.returncode for user in users] == [0] * 4, said
    client = tracking_client(uri)
    experiment = client.get_experiment_by_name("e")
    assert experiment is not None
    assert len(client.search_runs([experiment.experiment_id])) == 4


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.0, 0.2])
def test_a_process_killed_while_it_makes_one_leaves_nothing_that_matters(
    after_s: float, tmp_path: Path
):
    path = tmp_path / "mlflow.db"
    maker, building = use(f"sqlite:///{path}"), tmp_path / ".build-mlflow.db" / "mlflow.db"
    while not building.exists():
        assert maker.poll() is None, maker.communicate()[1]
        time.sleep(0.005)
    time.sleep(after_s)
    maker.send_signal(signal.SIGKILL)
    maker.communicate(timeout=30)
    run = TrackingRun.open(f"sqlite:///{path}", "e", "r")
    run.finish()
    assert fault_of(path) is None
    assert not building.parent.exists()


def with_schema(*names: str) -> Damage:
    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("DELETE FROM alembic_version")
            database.executemany(
                "INSERT INTO alembic_version VALUES (?)", [(name,) for name in names]
            )

    return damage


def of_other_tables(path: Path) -> None:
    path.unlink()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE experiments (experiment_id INTEGER)")


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3000])


def of_text(path: Path) -> None:
    path.write_text("this was a database " * 500)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            of_other_tables,
            r"left half made .*\(schema none, where this MLflow has \w+\); no run is in it; remove it",  # noqa: E501
        ),
        (with_schema(), "left half made .*remove it"),
        (with_schema(FIRST_SCHEMA), f"left half made .*schema {FIRST_SCHEMA}"),
        (with_schema(FIRST_SCHEMA, "acf3f17fdcc7"), "left half made"),
        (
            cut_short,
            r"cannot be read as an MLflow database \(.*\); restore a copy of it, or move it away",
        ),
        (of_text, r"cannot be read as an MLflow database \(file is not a database\)"),
    ],
)
def test_a_database_that_is_not_whole_is_named_and_left_as_it_is(
    copied: Path, damage: Damage, message: str
):
    damage(copied)
    before = copied.read_bytes()
    with pytest.raises(StorageError, match=message):
        tracking_client(f"sqlite:///{copied}")
    found = machine.tracking(Home(copied.parent))
    assert found.level is Level.PROBLEM and str(copied) in found.found and found.fix
    assert copied.read_bytes() == before


def leave_a_journal(path: Path) -> None:
    """What a process leaves that is killed while it writes."""
    change = (
        "import os, sqlite3, sys; database = sqlite3.connect(sys.argv[1], isolation_level=None); "
        "database.execute('PRAGMA cache_size = 1'); database.execute('BEGIN'); "
        "database.execute('CREATE TABLE more (x)'); [database.execute('INSERT INTO more VALUES "
        "(randomblob(5000))') for _ in range(100)]; os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", change, str(path)], check=True)
    assert path.with_name(f"{path.name}-journal").stat().st_size > 0


def test_what_is_advised_for_a_half_made_one_helps(copied: Path):
    of_other_tables(copied)
    with pytest.raises(StorageError, match=r"remove it \(rm (.*)\)") as caught:
        ensure_database(f"sqlite:///{copied}")
    advised = str(caught.value).split("(rm ")[1].split(")")[0]
    leave_a_journal(copied)
    subprocess.run(["rm", advised], check=True)
    ensure_database(f"sqlite:///{copied}")
    assert machine.tracking(Home(copied.parent)).level is Level.GOOD
    with closing(sqlite3.connect(copied)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (FIRST_SCHEMA, "of an older MLflow .*mlflow db upgrade sqlite:///"),
        ("ffff", "of another MLflow .*a newer one"),
    ],
)
def test_runs_in_a_database_of_another_mlflow_are_not_thrown_away(
    copied: Path, schema: str, message: str
):
    run = TrackingRun.open(uri := f"sqlite:///{copied}", "e", "r")
    run.finish()
    with_schema(schema)(copied)
    fault = fault_of(copied)
    assert fault is not None and "rm " not in fault.fix
    other = copied.rename(copied.with_name("other.db"))
    with pytest.raises(StorageError, match=message):
        ensure_database(uri.replace("mlflow.db", other.name))


@pytest.mark.parametrize(
    ("uri", "file"),
    [
        ("sqlite:////data/mlflow.db", Path("/data/mlflow.db")),
        ("sqlite:///mlflow.db", Path("mlflow.db").absolute()),
        ("sqlite+pysqlite:////data/mlflow.db?timeout=3", Path("/data/mlflow.db")),
        ("sqlite://", None),
        ("sqlite:///:memory:", None),
        ("http://127.0.0.1:5000", None),
        ("postgresql://user@host/mlflow", None),
    ],
)
def test_only_a_file_is_looked_after(uri: str, file: Path | None):
    assert database_file(uri) == file
