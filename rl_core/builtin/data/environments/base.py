"""The choice of tasks, which the rows of all environments of other packages share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from schemas.sections.section import Section


class EnvironmentRows(Section):
    """Choice of the tasks of an environment that become rows."""

    env_class: str
    """Environment of the recipe that plays the rows."""
    split: Literal["train", "eval", "all"] = "train"
    """Side of the split by task; `all` takes every task, where the environment's own settings split
    them."""
    size: int | None = Field(default=None, ge=1)
    """Number of rows; unset takes all tasks of this side."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    """Seed of the order of the tasks; unset keeps the environment's order."""
    eval_fraction: float = Field(default=0.2, gt=0, lt=1)
    """Share of all tasks that belongs to `eval`."""

    @property
    def source(self) -> str:
        """Name of the environment in the rows' `data_source`."""
        raise NotImplementedError(f"{type(self).__name__}.source")

    @property
    def shuffled(self) -> bool:
        """True if the tasks are put in an order drawn from `seed`, which needs all of them."""
        return self.seed is not None

    @property
    def content(self) -> str:
        """Text that the rows depend on besides the entry itself, such as a digest of a file."""
        return ""

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Yield every task as a row with its `key`. Raises: DataError, with what is wrong."""
        raise NotImplementedError(f"{type(self).__name__}.tasks")
