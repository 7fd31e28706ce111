"""Rows of verifiers environments: `{verifiers: my_taskset, size: 64, env_class: words}` in a
recipe's data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field, field_validator

from rl_core.builtin.data.environments.base import EnvironmentRows
from rl_core.builtin.data.environments.elsewhere import told_by
from rl_core.envs.others.interpreters import interpreter_with


class VerifiersRows(EnvironmentRows):
    """Tasks of a verifiers environment."""

    verifiers: str = Field(min_length=1)
    """Module or installed package that exports a taskset."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Settings of the taskset."""
    env: dict[str, Any] = Field(default_factory=dict)
    """Further settings of the verifiers environment."""
    python: str = Field(default=".venv-verifiers/bin/python", validate_default=True)
    """Python interpreter of the environment with verifiers; a relative path starts at the project's
    folder."""
    read: int | None = Field(default=None, ge=1)
    """Number of tasks to read before they are split; unset reads all, which a taskset without an
    end cannot give."""

    @field_validator("python", mode="after")
    @classmethod
    def _interpreter_is_there(cls, python: str) -> str:
        return interpreter_with("verifiers", python)

    @property
    def source(self) -> str:
        """Name of the environment in the rows' `data_source`."""
        return f"verifiers/{self.verifiers}"

    def tasks(self) -> Iterator[dict[str, object]]:
        """Yield every task as a row with its `key`. Raises: DataError, with what is wrong."""
        settings = self.model_dump(include={"verifiers", "args", "env"})
        settings |= {"max_turns": None, "wanted": self.read}
        return told_by(self.python, "verifiers_program", settings, self.source)
