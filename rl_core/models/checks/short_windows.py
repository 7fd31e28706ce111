"""Temporarily shortened attention windows, so that short rows reach their ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel

SHORT = 4
"""Number of keys in a shortened window; probe rows would not reach the end of real windows."""
WINDOWS = (
    *(
        "sliding_window",
        "sliding_window_size",
        "attention_chunk_size",
        "attention_window_size",
        "window_size",
    ),
    *("local_attention", "index_topk"),
)
"""Names of the number of keys in configs."""
NAMED_SO = ("window", "chunk", "topk", "local_attention")
"""Parts of the names of modules' own numbers of keys."""


@contextmanager
def short_windows(model: PreTrainedModel) -> Iterator[None]:
    """Shorten the model's attention windows, if it has any, during the block."""
    config = model.config.get_text_config()
    changed: list[tuple[PreTrainedConfig | nn.Module, str, int]] = []
    try:
        for name in WINDOWS:
            window = getattr(config, name, None)
            if not isinstance(window, int) or window <= SHORT:
                continue
            changed.append((config, name, window))
            setattr(config, name, SHORT)
            for module in model.modules():
                for key, value in vars(module).items():
                    if (
                        type(value) is int
                        and value == window
                        and any(part in key for part in NAMED_SO)
                    ):
                        changed.append((module, key, window))
            for owner, key, _ in changed:
                setattr(owner, key, SHORT)
        yield
    finally:
        for owner, key, window in changed:
            setattr(owner, key, window)
