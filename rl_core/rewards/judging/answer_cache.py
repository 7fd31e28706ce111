"""Answers of judges by the content of the question, in one file that all processes of a machine
share."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rl_core.errors import StorageError
from rl_core.rewards.judging.requests import Answer

_MOST_PARAMETERS = 500
_PATIENCE_S = 30.0


class AnswerCache:
    """A bounded table of answers, of which the oldest go first."""

    def __init__(self, path: Path, most: int) -> None:
        """Open or make the table. Raises: StorageError when it cannot be read or written."""
        self.path, self.most = path, most
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=_PATIENCE_S, check_same_thread=False)
            with self._file:
                self._file.execute("PRAGMA journal_mode=WAL")
                self._file.execute(
                    "CREATE TABLE IF NOT EXISTS answers (digest TEXT PRIMARY KEY, answer TEXT, "
                    "at REAL)"
                )
        except (OSError, sqlite3.Error) as error:
            raise self._broken(error) from error

    def found(self, digests: Sequence[str]) -> dict[str, Answer]:
        """Return the known answers among these."""
        rows: dict[str, Answer] = {}
        try:
            with self._lock:
                for first in range(0, len(digests), _MOST_PARAMETERS):
                    some = digests[first : first + _MOST_PARAMETERS]
                    marks = ",".join("?" * len(some))
                    query = f"SELECT digest, answer FROM answers WHERE digest IN ({marks})"
                    rows |= {
                        digest: Answer.loaded(text)
                        for digest, text in self._file.execute(query, some)
                    }
        except (sqlite3.Error, ValueError, TypeError) as error:
            raise self._broken(error) from error
        return rows

    def keep(self, answers: Mapping[str, Answer]) -> None:
        """Add answers, and drop the oldest above the limit."""
        now = time.time()
        rows = [(digest, answer.dumped(), now) for digest, answer in answers.items()]
        try:
            with self._lock, self._file:
                self._file.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?)", rows)
                self._file.execute(
                    "DELETE FROM answers WHERE rowid IN (SELECT rowid FROM answers "
                    "ORDER BY at DESC, rowid DESC LIMIT -1 OFFSET ?)",
                    (self.most,),
                )
        except sqlite3.Error as error:
            raise self._broken(error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _broken(self, error: Exception) -> StorageError:
        return StorageError(
            f"{self.path}: the answers of judges cannot be kept ({error}); remove the file, or set "
            "max_cached: 0"
        )
