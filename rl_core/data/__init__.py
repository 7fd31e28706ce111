"""Training data: reading, validation and preparation of rows, and their order in training.

Names are resolved on first use, so importing this package stays light.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_core.data.order.default_source import DefaultDataSource
    from rl_core.data.order.media_source import MultimodalRLDataSource
    from rl_core.data.order.prompt_dataset import PromptDataset
    from rl_core.data.read.raw_dir import ensure_raw_dir
    from rl_core.data.read.readers import read_rows

__all__ = [
    "DefaultDataSource",
    "MultimodalRLDataSource",
    "PromptDataset",
    "ensure_raw_dir",
    "read_rows",
]

_HOMES = {
    "DefaultDataSource": "rl_core.data.order.default_source",
    "MultimodalRLDataSource": "rl_core.data.order.media_source",
    "PromptDataset": "rl_core.data.order.prompt_dataset",
    "ensure_raw_dir": "rl_core.data.read.raw_dir",
    "read_rows": "rl_core.data.read.readers",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
