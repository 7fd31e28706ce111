"""Program of the process behind `reasoning_gym`: the scorers of reasoning-gym on one answer."""

import importlib
import json
import resource
from functools import lru_cache

from reasoning_gym.factory import DATASETS, create_dataset

MEMORY_BYTES = 4 * 2**30

if __name__ == "worker":
    resource.setrlimit(
        resource.RLIMIT_AS, (MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1])
    )


def answer(asked: tuple[str, str, str, int, str | None, str]) -> tuple[float | None, str | None]:
    """Return the score of an answer, and the scorer's error if it raised; no score when the entry
    cannot be made here.

    Args: asked: module of the task's class, task, its configuration as JSON, index of the entry,
    the truth in place of the entry's own or None, and the answer.
    """
    module, task, config, index, truth, given = asked
    try:
        if task not in DATASETS:
            importlib.import_module(module)
        dataset, entry = _entry(task, config, index)
    except Exception as error:
        return None, f"{type(error).__name__}: {error}"
    try:
        if truth is not None:
            entry = entry | {"answer": truth}
        return float(dataset.score_answer(answer=given, entry=entry)), None
    except Exception as error:
        return 0.0, f"{type(error).__name__}: {error}"


@lru_cache(maxsize=256)
def _entry(task: str, config: str, index: int):
    dataset = create_dataset(task, **json.loads(config))
    return dataset, dict(dataset[index])
