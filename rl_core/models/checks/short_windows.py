"""Windows of attention cut short for a while, so that short rows reach their ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SHORT = 4
"""Attention is cut to so many keys meanwhile, where it is cut; those rows would not reach the end of real windows."""
WINDOWS = (
    *("sliding_window", "sliding_window_size", "attention_chunk_size", "attention_window_size", "window_size"),
    *("local_attention", "index_topk"),
)
"""What configs call the number of keys."""
NAMED_SO = ("window", "chunk", "topk", "local_attention")
"""What modules call theirs, as a part of the name."""


@contextmanager
def short_windows(model: Any) -> Iterator[None]:
    """For the block, a model attends to few keys where it attends to a window."""
    config = model.config.get_text_config()
    changed: list[tuple[Any, str, int]] = []
    try:
        for name in WINDOWS:
            window = getattr(config, name, None)
            if not isinstance(window, int) or window <= SHORT:
                continue
            changed.append((config, name, window))
            setattr(config, name, SHORT)
            for module in model.modules():
                for key, value in vars(module).items():
                    if type(value) is int and value == window and any(part in key for part in NAMED_SO):
                        changed.append((module, key, window))
            for owner, key, _ in changed:
                setattr(owner, key, SHORT)
        yield
    finally:
        for owner, key, window in changed:
            setattr(owner, key, window)
