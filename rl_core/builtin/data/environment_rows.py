"""Rows of environments of other packages: their own tasks, written once as a file of SkyRL rows.

`{verifiers: my_taskset, size: 64, env_class: words}` in a recipe's data stands for such rows. A
task belongs to train or eval by a hash of its content alone, so the splits share none.
"""

import hashlib
import json
import random
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from rl_core.builtin.data.reasoning_problems import belongs_to_eval
from rl_core.data.store.atomic import atomic_writer
from rl_core.envs.others.interpreters import PROGRAMS, PROJECT, interpreter_with, module_paths
from rl_core.errors import DataError
from schemas.sections.section import Section

_VERSION = "1"
_ROWS_MAIN = PROJECT / "rl_core" / "rollout" / "agents" / "programs" / "rows_main.py"


class EnvironmentRows(Section):
    """Which of an environment's tasks become rows."""

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

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Yield every task as a row with its `key`. Raises: DataError, with what is wrong."""
        raise NotImplementedError(f"{type(self).__name__}.tasks")


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

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Yield every task as a row with its `key`. Raises: DataError, with what is wrong."""
        settings = self.model_dump(include={"verifiers", "args", "env"})
        settings |= {"max_turns": None, "wanted": self.read}
        return _told_by(self.python, "verifiers_program", settings, self.source)


class OpenEnvRows(EnvironmentRows):
    """Episodes of an OpenEnv environment: the arguments of their resets."""

    openenv: str = Field(min_length=1)
    """Name of the environment in the rows; which server plays them is in the recipe's
    `environments`."""
    size: int = Field(ge=1)  # pyright: ignore[reportIncompatibleVariableOverride]
    """Number of rows."""
    reset: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of each row's reset."""
    tasks_of: str | None = None
    """Split of the environment's own tasks, which are reset by their number; unset resets by
    seeds."""

    @property
    def source(self) -> str:
        """Name of the environment in the rows' `data_source`."""
        return f"openenv/{self.openenv}"

    @property
    def shuffled(self) -> bool:
        """False: `seed` is the first one that an episode is reset with."""
        return False

    def tasks(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each seed or task, without an end."""
        for number in count(self.seed or 0):
            own = {"seed": number}
            if self.tasks_of is not None:
                own = {"split": self.tasks_of, "index": number}
            reset = json.dumps({**self.reset, **own}, sort_keys=True)
            yield {
                "key": f"{self.openenv} {reset}",
                "prompt": [{"role": "user", "content": f"{self.openenv}, reset with {reset}"}],
                "reward_spec": {"method": "openenv", "ground_truth": ""},
                "extra_info": {"index": number, "openenv_reset": reset},
            }


KINDS: Mapping[str, type[EnvironmentRows]] = {"verifiers": VerifiersRows, "openenv": OpenEnvRows}
"""Key of a data entry that names an environment's tasks, and its spec."""


def environment_rows(entry: object) -> type[EnvironmentRows] | None:
    """Return the spec class of a data entry; None if it names no environment's tasks."""
    keys = entry if isinstance(entry, Mapping) else {}
    return next((kind for key, kind in KINDS.items() if key in keys), None)


def planned_environment_rows(spec: EnvironmentRows, folder: Path | str) -> Path:
    """Return the file that `materialise_environment_rows` writes, without writing it."""
    told = {"version": _VERSION, **spec.model_dump(exclude={"python"})}
    values = json.dumps(told, sort_keys=True, default=str)
    digest = hashlib.sha256(values.encode()).hexdigest()[:12]
    name = "".join(one if one.isalnum() else "-" for one in spec.source)[-60:]
    return Path(folder).expanduser() / f"{name}-{spec.split}-{digest}.jsonl"


def materialise_environment_rows(spec: EnvironmentRows, folder: Path | str) -> Path:
    """Write the rows of `spec` once; an existing file is reused.

    Raises: DataError when the environment cannot be loaded, has a task that makes no row, or fewer
    tasks than asked for.
    """
    path = planned_environment_rows(spec, folder)
    if not path.is_file():
        rows = list(_rows(spec))
        with atomic_writer(path) as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def _rows(spec: EnvironmentRows) -> Iterator[dict[str, Any]]:
    tasks: Iterable[dict[str, Any]] = spec.tasks()
    num_tasks = 0
    if spec.shuffled:
        tasks = list(tasks)
        random.Random(spec.seed).shuffle(tasks)
    kept: list[dict[str, Any]] = []
    for task in tasks:
        num_tasks += 1
        held_out = belongs_to_eval(task.pop("key"), spec.eval_fraction)
        if spec.split == "all" or held_out == (spec.split == "eval"):
            kept.append({"data_source": spec.source, "env_class": spec.env_class, **task})
        if len(kept) == spec.size:
            break
    if len(kept) < (spec.size or 1):
        raise DataError(
            f"{spec.source}: {len(kept)} of its {num_tasks} tasks belong to {spec.split}, size "
            f"asks for {spec.size or 'one or more'}; lower size, or change eval_fraction"
        )
    return iter(kept)


def _told_by(
    python: str, program: str, settings: Mapping[str, Any], source: str
) -> Iterator[dict[str, Any]]:
    """Yield what a program in another interpreter tells."""
    order = {
        "path": module_paths(True),
        "program": f"{PROGRAMS}.{program}",
        "settings": dict(settings),
    }
    told = subprocess.run(
        [python, "-P", str(_ROWS_MAIN)],
        input=json.dumps(order, default=str),
        capture_output=True,
        text=True,
    )
    for line in told.stdout.splitlines():
        row = json.loads(line)
        if "error" in row:
            raise DataError(f"{source}: its tasks cannot be read: {row['error']}")
        yield row
    if told.returncode:
        raise DataError(
            f"{source}: its tasks cannot be read: {python} ended with {told.returncode}: "
            f"{told.stderr.strip()[-300:]}"
        )
