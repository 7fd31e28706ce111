"""Properties of the layers of a transformers model: their sizes, and which are plain causal
attention.

Only the latter can be cut at will: packed end to end, shared between siblings, or exchanged between
ranks. Convolutions, recurrences and other kinds of attention would carry something over from a
neighbour, without a word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel


_CAUSAL = {"full_attention", "sliding_attention"}


def other_layers(model: PreTrainedModel) -> list[str]:
    """Return the kinds of layers of a model besides causal attention, whole or in a window; empty
    for most models."""
    config = model.config.get_text_config()
    found = set(getattr(config, "layer_types", None) or ()) - _CAUSAL
    if getattr(model, "_is_stateful", False):
        found |= {"state"}
    return sorted(found)


def sizes_of_layers(config: PreTrainedConfig, name: str) -> set[int]:
    """The values of a field of a config: one, or as many as differ from layer to layer; empty where
    it has none.

    A config whose layers differ refuses to give one value for all
    (`AmbiguousGlobalPerLayerAttributeError`).
    """
    configs = []
    for layer in range(config.num_hidden_layers):
        configs.append(config.per_layer_config[layer])
    values = {getattr(one, name, None) for one in configs}
    return {value for value in values if isinstance(value, int) and value > 0}
