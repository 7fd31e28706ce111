"""The part of a transformers model that computes hidden states, whatever a family's names and
inputs are."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from rl_core.errors import ModelError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def backbone_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the module below the head: `model`, `transformer`, `gpt_neox`, … Raises: ModelError
    when there is none."""
    name = backbone_name(model)
    if name is None:
        raise ModelError(
            f"{type(model).__name__} has no backbone apart from its head; only models with a "
            "language modelling head on top of one can be trained"
        )
    backbone: Any = model._modules[name]
    return backbone


def backbone_name(model: PreTrainedModel) -> str | None:
    """Return a model's name for its backbone; None if it has no backbone apart from its head."""
    from transformers import PreTrainedModel

    prefix = model.base_model_prefix
    if prefix in model._modules:
        return prefix
    # Some models have another prefix than the attribute they use (Llama 4). A part with its own
    # head is not a backbone.
    words = words_of(model)
    for name, child in model._modules.items():
        if (
            isinstance(child, PreTrainedModel)
            and child.get_output_embeddings() is None
            and holds(child, words)
        ):
            return name
    return None


def words_of(model: PreTrainedModel) -> nn.Module | None:
    """Return the word embeddings; None if a model has none."""
    try:
        return model.get_input_embeddings()
    except (NotImplementedError, AttributeError):
        return None


def head_of(model: PreTrainedModel) -> Any:
    """Return the projection to the vocabulary, in most families a linear layer; None if a model
    has none."""
    return model.get_output_embeddings()


def attention_of(model: PreTrainedModel) -> str:
    """Return the name of a model's implementation of attention."""
    # transformers has no public name to read it by; this can go when it has.
    return str(model.config._attn_implementation)


def holds(model: nn.Module, part: nn.Module | None) -> bool:
    """Return True if a module is a part of a model."""
    return part is not None and any(module is part for module in model.modules())


def taken_by(backbone: PreTrainedModel, inputs: Mapping[str, object]) -> dict[str, object]:
    """Return the inputs that the backbone's forward accepts: models without positions (ALiBi) take
    none."""
    names, takes_any = _parameters(type(backbone))
    return {name: value for name, value in inputs.items() if takes_any or name in names}


@cache
def _parameters(backbone_class: type) -> tuple[frozenset[str], bool]:
    parameters = inspect.signature(backbone_class.forward).parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return frozenset(parameters), takes_any


def blocks_named(model: nn.Module, class_names: Collection[str]) -> list[nn.Module]:
    """Return the outermost modules of some classes, wrapped by FSDP or not; those that share a
    parameter with a module elsewhere are left out."""
    names, found = set(class_names), []
    for module in model.modules():
        if any(cls.__name__ in names for cls in type(module).__mro__):
            found.append(module)
    inside = {id(part) for block in found for part in block.modules() if part is not block}
    everywhere = _num_places(model)
    apart = [module for module in found if _num_places(module).items() <= everywhere.items()]
    return [module for module in apart if id(module) not in inside]


def _num_places(module: nn.Module) -> Counter[int]:
    """Count the modules that share each parameter."""
    num_places: Counter[int] = Counter()
    for part in module.modules():
        num_places.update(id(one) for one in part._parameters.values() if one is not None)
    return num_places
