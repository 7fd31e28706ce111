"""Program of the processes behind `tools/sql.py`: one SELECT over a read-only connection. Standard
library only."""

import re
import resource
import sqlite3
import time
from urllib.parse import quote

MEMORY_BYTES = 2 * 2**30
MAX_VALUE_BYTES = 1_000_000
MAX_SQL_CHARACTERS = 20_000
INSTRUCTIONS_BETWEEN_CHECKS = 2000
_FORBIDDEN_FUNCTIONS = frozenset(
    {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"}
)
_OPAQUE = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]""",
    re.DOTALL,
)

if __name__ == "worker":
    resource.setrlimit(
        resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1])
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def answer(request: tuple[str, str, float, int]) -> tuple[object, ...] | str:
    """Run a request `(file, sql, timeout_s, max_rows)`; return columns, rows, a completeness flag
    and the columns read, or an error text."""
    file, sql, timeout_s, max_rows = request
    if len(sql) > MAX_SQL_CHARACTERS:
        return f"the query has more than {MAX_SQL_CHARACTERS} characters"
    if not re.match(
        r"(?:select|with|values)\b", without_comments(sql).lstrip("( \t\r\n;"), re.IGNORECASE
    ):
        return "only one SELECT statement is allowed"
    deadline = time.monotonic() + timeout_s
    columns_read: set[tuple[str, str]] = set()
    connection = None
    try:
        connection = sqlite3.connect(
            f"file:{quote(file)}?mode=ro&immutable=1", uri=True, isolation_level=None
        )
        _confine(connection, columns_read, deadline)
        cursor = connection.execute(sql)
        rows = cursor.fetchmany(max_rows + 1)
        columns = tuple(column[0] for column in cursor.description or ())
    # `Warning` is what older interpreters raise for several statements.
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
        is_late = time.monotonic() > deadline
        if is_late:
            return f"timeout: the query took more than {timeout_s:g} seconds"
        return str(error)
    finally:
        if connection is not None:
            connection.close()
    return columns, tuple(rows[:max_rows]), len(rows) <= max_rows, frozenset(columns_read)


def _confine(
    connection: sqlite3.Connection, columns_read: set[tuple[str, str]], deadline: float
) -> None:
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    # No file can be written here, not even a temporary one.
    connection.execute("PRAGMA temp_store = MEMORY")
    for limit in (sqlite3.SQLITE_LIMIT_LENGTH, sqlite3.SQLITE_LIMIT_SQL_LENGTH):
        connection.setlimit(limit, MAX_VALUE_BYTES)
    connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
    connection.set_authorizer(_authorizer(columns_read))
    connection.set_progress_handler(
        lambda: time.monotonic() > deadline, INSTRUCTIONS_BETWEEN_CHECKS
    )


def _authorizer(columns_read: set[tuple[str, str]]):
    def authorize(
        action: int,
        first: str | None,
        second: str | None,
        _database: str | None,
        _inner: str | None,
    ) -> int:
        if action == sqlite3.SQLITE_READ:
            columns_read.add(((first or "").lower(), (second or "").lower()))
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            is_fine = (second or "").lower() not in _FORBIDDEN_FUNCTIONS
            if is_fine:
                return sqlite3.SQLITE_OK
            return sqlite3.SQLITE_DENY
        if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_RECURSIVE):
            return sqlite3.SQLITE_OK
        return sqlite3.SQLITE_DENY

    return authorize


def without_comments(sql: str) -> str:
    """Return the query without comments, string literals and quoted names emptied."""

    def kept(match: re.Match[str]) -> str:
        text = match[0]
        if text.startswith(("--", "/*")):
            return " "
        return text[0] + text[-1]

    return _OPAQUE.sub(kept, sql)
