"""Rows of Harbor: `{harbor: tasks, env_class: work}` in a recipe's data, a row for each task folder
below `tasks`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import Field

from rl_core.builtin.data.environments.base import EnvironmentRows
from rl_core.envs.others.harbor_tasks import read_tasks
from rl_core.errors import DataError, EnvError
from rl_core.runtime.user_paths import user_path

HOW = (
    "You work in a shell. To run commands, write them in one block that begins with ```bash and "
    "ends with ```; you are told what they print. A reply without a block ends the work."
)
"""System message of models that call no tools."""


class HarborRows(EnvironmentRows):
    """Tasks of Harbor."""

    harbor: str = Field(min_length=1)
    """Folder of the tasks; a relative path starts at the current folder."""
    system: str = HOW
    """System message of each row; empty leaves it out."""

    @property
    def source(self) -> str:
        """Name of the folder in the rows' `data_source`."""
        return f"harbor/{Path(self.harbor).name}"

    @property
    def content(self) -> str:
        """Digest of the instructions, so that an edited one makes new rows."""
        digest = hashlib.sha256()
        folder = user_path(self.harbor)
        for file in sorted(folder.rglob("instruction.md")):
            digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
        return digest.hexdigest()

    def tasks(self) -> Iterator[dict[str, object]]:
        """Yield a row for each task. Raises: DataError with the folder that is no task."""
        folder = user_path(self.harbor)
        try:
            found = read_tasks(folder)
        except EnvError as error:
            raise DataError(str(error)) from error
        system = [{"role": "system", "content": self.system}] if self.system else []
        for task in found:
            name = str(task.folder.relative_to(folder))
            yield {
                "key": name,
                "prompt": [*system, {"role": "user", "content": task.instruction}],
                # The task's tests grade.
                "reward_spec": {"method": "harbor", "ground_truth": name},
                "extra_info": {"harbor_task": name},
            }
