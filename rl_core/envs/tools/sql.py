"""SQLite for a model: queries may read, within a time limit, and nothing else.

Queries run in separate processes (`sql_worker.py`), over a read-only connection that allows SELECT
alone. A query is interrupted at its deadline; one stuck in a single instruction (`printf('%.*c',
1000000000, 'x')`) takes its process with it. Rows, bytes of a value and the text shown are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_core.envs.tools.core import ToolGroup, tool
from rl_core.envs.tools.shared import Shared, leased
from rl_core.envs.tools.workers.sql_worker import without_comments
from rl_core.envs.tools.workers.worker_pool import WorkerOverran, WorkerPool
from rl_core.errors import EnvError

MAX_ROWS = 100_000
MAX_SHOWN_CHARACTERS = 9000
SHOWN_ROWS = 50
HARD_STOP_S = 0.5
"""Seconds after its deadline that a query may spend inside one instruction before its process is
killed."""
FOLDERS = {
    "spider": "spider/database",
    "synsql": "SynSQL-2.5M/databases",
    "bird": "bird/train/train_databases",
}
"""Folder of each source's databases below the root."""


class SQLError(Exception):
    """A query that was refused, failed or took too long; the message is written for the model."""


sql_workers: Shared[None, WorkerPool] = Shared(
    lambda _: WorkerPool(str(Path(__file__).parent / "workers/sql_worker.py"), max_workers=4)
)
"""The processes that run queries."""


@dataclass(frozen=True)
class QueryResult:
    """Result of a query."""

    columns: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]
    is_complete: bool
    """False if there are more rows than were requested."""
    columns_read: frozenset[tuple[str, str]]
    """The (table, column) pairs that the query reads."""


def database_file(root: str | Path, source: str, db_id: str) -> Path:
    """Return the file of a database: `<root>/<folder of the source>/<db_id>/<db_id>.sqlite`.

    Raises: EnvError on an unknown source, an id that would leave its folder, or a missing file.
    """
    folder = FOLDERS.get(source.lower())
    if folder is None:
        raise EnvError(f"data_source {source!r} has no databases (known: {', '.join(FOLDERS)})")
    if db_id in ("", ".", "..") or re.search(r"[/\\\x00]", db_id):
        raise EnvError(f"db_id {db_id!r} is not the name of a database folder")
    file = Path(root).expanduser() / folder / db_id / f"{db_id}.sqlite"
    if not file.is_file():
        raise EnvError(
            f"db_id {db_id!r}: there is no database at {file}; set env_config.db_path to the "
            "folder above"
        )
    return file


def run_query(
    file: str | Path, sql: str, *, timeout_s: float, max_rows: int = MAX_ROWS
) -> QueryResult:
    """Run one SELECT. Raises: SQLError."""
    try:
        sql.encode()
    except UnicodeEncodeError as error:
        raise SQLError("the query is not valid text") from error
    with leased(sql_workers) as workers:
        try:
            found = workers.ask(
                (str(Path(file).absolute()), sql, timeout_s, max_rows), timeout_s + HARD_STOP_S
            )
        except WorkerOverran as error:
            raise SQLError(f"timeout: the query took more than {timeout_s:g} seconds") from error
    if isinstance(found, str):
        raise SQLError(found)
    columns, rows, is_complete, columns_read = found
    return QueryResult(columns, rows, is_complete, columns_read)


def is_ordered(sql: str) -> bool:
    """Return True if the outermost query has an ORDER BY."""
    outer, depth = [], 0
    for character in without_comments(sql):
        depth += {"(": 1, ")": -1}.get(character, 0)
        outer.append(character if depth == 0 else " ")
    return re.search(r"\border\s+by\b", "".join(outer), re.IGNORECASE) is not None


def same_rows(
    got: Sequence[Sequence[object]], expected: Sequence[Sequence[object]], *, ordered: bool
) -> bool:
    """Return True if two results are equal, as lists if `ordered`, else as multisets. Floats are
    compared to nine digits."""
    got_keys = [tuple(map(_key, row)) for row in got]
    expected_keys = [tuple(map(_key, row)) for row in expected]
    if ordered:
        return got_keys == expected_keys
    return sorted(got_keys, key=repr) == sorted(expected_keys, key=repr)


def _key(value: object) -> object:
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        return float(f"{value:.9g}")
    return value


def as_table(result: QueryResult) -> str:
    """Format a result as text: column names, then rows, cells separated by ` | `; a long one is cut
    and says so."""
    lines = [" | ".join(result.columns), *(" | ".join(map(_cell, row)) for row in result.rows)]
    text = "\n".join(lines) if result.rows else f"{lines[0]}\n(no rows)"
    if result.is_complete and len(text) <= MAX_SHOWN_CHARACTERS:
        return text
    return (
        f"Truncated to {SHOWN_ROWS} rows: "
        + "\n".join(lines[: SHOWN_ROWS + 1])[:MAX_SHOWN_CHARACTERS]
    )


def _cell(value: object) -> str:
    return "NULL" if value is None else str(value)


class SQLCodeExecutorToolGroup(ToolGroup):
    """Tool group with one tool, `sql`, over one database file."""

    def __init__(self, db_file_path: str | Path, timeout: float = 5.0) -> None:
        """Create the tool and lease its worker processes.

        Args: timeout: seconds for one query.
        """
        super().__init__()
        self.file, self.timeout_s = db_file_path, timeout
        self._workers = sql_workers.lease(None)

    @tool
    def sql(self, query: str) -> str:
        """Return the result as a table, or the error."""
        try:
            return as_table(
                run_query(self.file, query, timeout_s=self.timeout_s, max_rows=10 * SHOWN_ROWS)
            )
        except SQLError as error:
            return f"Error executing SQL: {error}"

    def close(self) -> None:
        """Release the processes."""
        self._workers.release()
