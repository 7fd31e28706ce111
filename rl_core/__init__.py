"""RL post-training: the library below `flows` and `tasks`, which order its steps.

In a notebook, `import rl_core as rl` gives `rl.train`, `rl.evaluate`, `rl.load` and `rl.open_run`.
They are imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from rl_core.runtime.own_packages import find_own_packages_first

if TYPE_CHECKING:
    from flows.python_api.chat import ChatModel, load
    from flows.python_api.finished_run import Run, open_run
    from flows.python_api.training import evaluate, train
    from rl_core.errors import StopTraining

find_own_packages_first()

__all__ = ["ChatModel", "Run", "StopTraining", "evaluate", "load", "open_run", "train"]
_HOMES = {
    "ChatModel": "flows.python_api.chat",
    "Run": "flows.python_api.finished_run",
    "StopTraining": "rl_core.errors",
    "evaluate": "flows.python_api.training",
    "load": "flows.python_api.chat",
    "open_run": "flows.python_api.finished_run",
    "train": "flows.python_api.training",
}
"""Modules of the names that are imported on first use."""


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
