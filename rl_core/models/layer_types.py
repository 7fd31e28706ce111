"""Layers of a transformers model that see no more than causal attention does.

Only those can be packed end to end, shared between siblings, or exchanged between ranks.
Convolutions, recurrences and other kinds of attention would silently carry over state from an
adjacent row.
"""

from __future__ import annotations

from typing import Any

_CAUSAL = {"full_attention", "sliding_attention"}


def other_layers(model: Any) -> list[str]:
    """Return the kinds of layers of a model besides causal attention, whole or in a window; empty
    for most models."""
    config = model.config.get_text_config()
    found = set(getattr(config, "layer_types", None) or ()) - _CAUSAL
    if getattr(model, "_is_stateful", False):
        found |= {"state"}
    return sorted(found)
