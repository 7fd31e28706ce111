"""Rows that a function of the user's makes: `{function: "my_agent:rows", env_class: my_agent}` in a
recipe's data. An agent and its rows then stand in one file."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from rl_core.builtin.data.environments.base import EnvironmentRows
from rl_core.errors import DataError, RecipeError
from rl_core.runtime.registry import import_target


class FunctionRows(EnvironmentRows):
    """Rows of a function."""

    function: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    """Function that yields rows, `my_pkg.my_module:rows`: dictionaries with a `prompt` and what the
    environment reads. Rows with the same `key` are on one side of the split; without one, each row
    is its own."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the function, by name."""

    @property
    def source(self) -> str:
        """Name of the function in the rows' `data_source`."""
        return self.function.replace(":", ".")

    @property
    def content(self) -> str:
        """Digest of the function's file, so that an edited one makes new rows."""
        loaded = inspect.unwrap(self._loaded())
        try:
            file = inspect.getsourcefile(loaded)
        except TypeError as error:  # a built-in, or an object that can be called
            raise DataError(
                f"function: {self.function} must be a function that Python code defines"
            ) from error
        return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""

    def tasks(self) -> Iterator[dict[str, object]]:
        """Yield the rows. Raises: DataError when the function cannot be called, or a row is
        none."""
        number = 0
        try:
            for row in self._loaded()(**self.args):
                if not isinstance(row, dict) or not row.get("prompt"):
                    raise DataError(
                        f"{self.function}: row {number}: must be a dictionary with a prompt, got "
                        f"{row!r:.100}"
                    )
                yield {
                    "key": json.dumps(row, sort_keys=True),
                    "reward_spec": {"method": "agent", "ground_truth": ""},
                    **row,
                }
                number += 1
        except DataError:
            raise
        # Whatever is wrong in a function of the user's is said, with its row.
        except Exception as error:
            raise DataError(
                f"{self.function}: no row {number}: {type(error).__name__}: {error}"
            ) from error

    def _loaded(self) -> Callable[..., Iterable[object]]:
        try:
            function = import_target(self.function)
        except RecipeError as error:
            raise DataError(f"function: {error}") from error
        if not callable(function):
            raise DataError(f"function: {self.function} is no function")
        return function
