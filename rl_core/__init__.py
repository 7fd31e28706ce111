"""RL post-training: the library below `flows` and `tasks`, which order its steps.

In a notebook, `import rl_core as rl` gives `rl.train`, `rl.evaluate`, `rl.load` and `rl.open_run`.
They are imported on first use.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from rl_core.runtime.own_packages import find_own_packages_first
from rl_core.runtime.quiet_libraries import quiet_libraries

if TYPE_CHECKING:
    from flows.python_api.chat import ChatModel, load
    from flows.python_api.finished_run import Run, open_run
    from flows.python_api.training import evaluate, train
    from rl_core.errors import StopTraining

find_own_packages_first()
quiet_libraries()

__all__ = ["ChatModel", "Run", "StopTraining", "evaluate", "load", "open_run", "train"]
_HOMES = {
    "ChatModel": "flows.python_api.chat",
    "Run": "flows.python_api.finished_run",
    "StopTraining": "rl_core.errors",
    "evaluate": "flows.python_api.training",
    "load": "flows.python_api.chat",
    "open_run": "flows.python_api.finished_run",
}
"""Modules of the names that are imported on first use."""


class _Library(ModuleType):
    """`rl_core` with the function `train`, which stays when Python has imported the package
    `rl_core.train` and would put that in its place."""

    @property
    def train(self) -> object:
        """The function that trains a recipe."""
        return import_module("flows.python_api.training").train

    @train.setter
    def train(self, package: ModuleType) -> None:
        """Leave the function where it is: Python calls this once it has imported the package."""


sys.modules[__name__].__class__ = _Library


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
