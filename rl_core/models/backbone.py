"""The part of a transformers model that computes hidden states, whatever a family's names and
inputs are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from rl_core.errors import ModelError


def backbone_of(model: Any) -> Any:
    """Return the module below the head: `model`, `transformer`, `gpt_neox`, … Raises: ModelError
    when there is none."""
    name = backbone_name(model)
    if name is None:
        raise ModelError(
            f"{type(model).__name__} has no backbone apart from its head; only models with a "
            "language modelling head on top of one can be trained"
        )
    return model._modules[name]


def backbone_name(model: Any) -> str | None:
    """Return a model's name for its backbone; None if it has no backbone apart from its head."""
    from transformers import PreTrainedModel

    prefix = model.base_model_prefix
    if prefix in model._modules:
        return prefix
    # Some have another prefix than the name they use (Llama 4). A part with a head of its own is no
    # backbone.
    words = words_of(model)
    for name, child in model._modules.items():
        if (
            isinstance(child, PreTrainedModel)
            and child.get_output_embeddings() is None
            and holds(child, words)
        ):
            return name
    return None


def words_of(model: Any) -> Any:
    """Return the word embeddings; None if a model has none."""
    try:
        return model.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        return None


def holds(model: Any, part: Any) -> bool:
    """Return True if a module is a part of a model."""
    return part is not None and any(module is part for module in model.modules())


def taken_by(backbone: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that the backbone's forward accepts: models without positions (ALiBi) take
    none."""
    names, takes_any = _parameters(type(backbone))
    return {name: value for name, value in inputs.items() if takes_any or name in names}


@cache
def _parameters(backbone_class: type) -> tuple[frozenset[str], bool]:
    parameters = inspect.signature(backbone_class.forward).parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return frozenset(parameters), takes_any
