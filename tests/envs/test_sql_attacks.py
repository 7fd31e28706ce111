"""What a model may try with a database. Each attempt is a real one; afterwards the file is what it
was."""

import hashlib
import sqlite3
import time
from pathlib import Path

import pytest

from rl_core.envs.tools.sql import SQLCodeExecutorToolGroup, SQLError, run_query

FOREVER = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
CROSSED = "SELECT COUNT(*) FROM t a, t b, t c, t d, t e, t f, t g, t h, t i, t j"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    file = tmp_path / "shop.sqlite"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE t (x INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?)", [(i,) for i in range(100)])
    connection.close()
    with sqlite3.connect(tmp_path / "secret.sqlite") as connection:
        connection.execute("CREATE TABLE secrets (x TEXT)")
    connection.close()
    return file


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("ATTACH DATABASE '{folder}/secret.sqlite' AS other", "another database"),
        ("ATTACH '{folder}/new.sqlite' AS other", "a new file"),
        ("SELECT * FROM other.secrets", "a table of a database that was never attached"),
        ("PRAGMA writable_schema = 1", "a setting that allows to damage the file"),
        ("PRAGMA database_list", "where the file lies"),
        ("PRAGMA journal_mode = WAL", "a setting that writes"),
        ("SELECT * FROM pragma_database_list", "the same as a table function"),
        ("DELETE FROM t", "deleting rows"),
        ("DROP TABLE t", "dropping the table"),
        ("INSERT INTO t VALUES (1)", "inserting"),
        ("UPDATE t SET x = 0", "updating"),
        ("REPLACE INTO t VALUES (1)", "replacing"),
        ("CREATE TABLE u (x)", "a new table"),
        ("CREATE TEMP TABLE u AS SELECT * FROM t", "a temporary table"),
        ("CREATE VIEW v AS SELECT 1", "a view"),
        ("VACUUM INTO '{folder}/copy.sqlite'", "a copy of the file"),
        ("BEGIN EXCLUSIVE", "a lock"),
        ("SAVEPOINT a", "a savepoint"),
        ("REINDEX", "an index"),
        ("ANALYZE", "statistics"),
        ("SELECT 1; DELETE FROM t", "two statements"),
        ("SELECT 1;;;DELETE FROM t", "two statements, well apart"),
        ("/* SELECT */ DELETE FROM t", "a comment that says SELECT"),
        ("-- SELECT\nDELETE FROM t", "a line comment that says SELECT"),
        ("WITH a AS (SELECT 1) DELETE FROM t", "a deletion that begins like a query"),
        ("WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a", "an insertion that begins like a query"),
        ("SELECT load_extension('{folder}/evil.so')", "native code"),
        ("SELECT readfile('/etc/passwd')", "a file, with the shell's function"),
        ("SELECT writefile('{folder}/x', 'y')", "writing a file, with the shell's function"),
        ("SELECT fts3_tokenizer('simple', x'41414141')", "a pointer"),
        (FOREVER + " SELECT COUNT(*) FROM n", "a recursion without end"),
        (FOREVER + " SELECT * FROM n ORDER BY i", "the same, sorted"),
        (CROSSED, "a product of ten tables"),
        ("SELECT randomblob(1000000000)", "a gigabyte at once"),
        ("SELECT zeroblob(2000000000)", "two gigabytes of zeros"),
        ("SELECT replace(hex(zeroblob(400000)), '0', hex(zeroblob(400000)))", "text that explodes"),
        ("SELECT printf('%.*c', 2000000000, 'x')", "a loop inside one instruction"),
        ("SELECT group_concat(hex(zeroblob(100000))) FROM t, t b", "a long concatenation"),
        ("SELECT '" + "x" * 30_000 + "'", "a query longer than any right one"),
        ("SELECT " + "(" * 3000 + "1" + ")" * 3000, "brackets a parser could drown in"),
        ("SELECT replace(hex(zeroblob(400000)), hex(zeroblob(200000)) || '1', '')", "a search inside one instruction"),
        ("\0", "a null byte"),
        ("", "nothing"),
        ("\ud800", "half a character"),
    ],
)  # fmt: skip
def test_an_attack_is_refused_and_leaves_no_trace(database: Path, sql: str, why: str) -> None:
    before = hashlib.sha256(database.read_bytes()).digest()
    files = sorted(path.name for path in database.parent.iterdir())
    with pytest.raises(SQLError):
        run_query(database, sql.replace("{folder}", str(database.parent)), timeout_s=0.3)
    assert hashlib.sha256(database.read_bytes()).digest() == before, why
    assert sorted(path.name for path in database.parent.iterdir()) == files, why


def test_rows_without_end_stop_at_the_cap(database: Path) -> None:
    result = run_query(database, FOREVER + " SELECT * FROM n", timeout_s=5.0, max_rows=1000)
    assert len(result.rows) == 1000 and not result.is_complete


def test_a_deadline_is_kept_and_the_model_is_told(database: Path) -> None:
    started = time.monotonic()
    answer = SQLCodeExecutorToolGroup(database, timeout=0.2).sql(CROSSED)
    assert answer == "Error executing SQL: timeout: the query took more than 0.2 seconds"
    assert time.monotonic() - started < 60


def test_a_missing_database_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(SQLError, match="unable to open"):
        run_query(tmp_path / "none.sqlite", "SELECT 1", timeout_s=1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_name_cannot_carry_options(tmp_path: Path) -> None:
    with pytest.raises(SQLError):
        run_query(tmp_path / "x.sqlite?mode=rwc&y=", "SELECT 1", timeout_s=1.0)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.sqlite").write_text("hello" * 1000)
    with pytest.raises(SQLError, match="not a database"):
        run_query(tmp_path / "x.sqlite", "SELECT * FROM sqlite_master", timeout_s=1.0)
