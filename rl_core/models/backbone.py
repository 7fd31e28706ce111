"""The part of a transformers model that gives hidden states, whatever a family calls it and whatever it takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import Any

from rl_core.errors import ModelError


def backbone_of(model: Any) -> Any:
    """What lies below the head: `model`, `transformer`, `gpt_neox`, … Raises: ModelError when there is none."""
    backbone = model.base_model
    if backbone is model:
        raise ModelError(
            f"{type(model).__name__} has no backbone apart from its head; only models with a language modelling head "
            "on top of one can be trained"
        )
    return backbone


def taken_by(backbone: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the inputs that the backbone's forward knows: models without positions (ALiBi) are given none."""
    names, takes_any = _parameters(type(backbone))
    return {name: value for name, value in inputs.items() if takes_any or name in names}


@cache
def _parameters(backbone_class: type) -> tuple[frozenset[str], bool]:
    parameters = inspect.signature(backbone_class.forward).parameters
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return frozenset(parameters), takes_any
