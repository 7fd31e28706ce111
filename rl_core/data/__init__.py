"""Rows: reading, validation, preparation and the order in which training sees them.

Names are resolved on first use, so importing this package stays light.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_core.data.prompt_dataset import PromptDataset
    from rl_core.data.readers import read_rows

__all__ = ["PromptDataset", "read_rows"]

_HOMES = {"PromptDataset": "rl_core.data.prompt_dataset", "read_rows": "rl_core.data.readers"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
