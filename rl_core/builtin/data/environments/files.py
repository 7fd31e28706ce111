"""Rows of environments of other packages: their own tasks, written once as a file of SkyRL rows.

A task belongs to train or eval by a hash of its content alone, so the splits share none.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rl_core.builtin.data.environments.base import EnvironmentRows
from rl_core.builtin.data.environments.composite import CompositeRows
from rl_core.builtin.data.environments.function import FunctionRows
from rl_core.builtin.data.environments.harbor import HarborRows
from rl_core.builtin.data.environments.nemo_gym import NemoGymRows
from rl_core.builtin.data.environments.openenv import OpenEnvRows
from rl_core.builtin.data.environments.verifiers import VerifiersRows
from rl_core.builtin.data.reasoning_problems import belongs_to_eval
from rl_core.data.store.atomic import atomic_writer
from rl_core.errors import DataError

_VERSION = "1"
KINDS: Mapping[str, type[EnvironmentRows]] = {
    "verifiers": VerifiersRows,
    "openenv": OpenEnvRows,
    "nemo_gym": NemoGymRows,
    "composite": CompositeRows,
    "function": FunctionRows,
    "harbor": HarborRows,
}
"""Key of a data entry that names an environment's tasks, and its spec."""


def environment_rows(entry: object) -> type[EnvironmentRows] | None:
    """Return the spec class of a data entry; None if it names no environment's tasks."""
    keys = entry if isinstance(entry, Mapping) else {}
    return next((kind for key, kind in KINDS.items() if key in keys), None)


def planned_environment_rows(spec: EnvironmentRows, folder: Path | str) -> Path:
    """Return the file that `materialise_environment_rows` writes, without writing it."""
    told = {"version": _VERSION, **spec.model_dump(exclude={"python"}), "content": spec.content}
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
        rows = _rows(spec)
        with atomic_writer(path) as file:
            for row in rows:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def _rows(spec: EnvironmentRows) -> list[dict[str, Any]]:
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
    return kept
