"""The modules that a recipe names: those that FSDP wraps one by one, and the one that is trained.

Both usually follow from the model's family. A name that the model does not have is refused with
those that it has.
"""

from __future__ import annotations

from torch import nn

from rl_core.errors import RecipeError
from rl_core.models.causal_lm import blocks
from rl_core.models.policy import Policy
from rl_core.runtime.registry import PluginConfig

DEPTH = 2
"""Levels of module names that an error lists."""


class FSDPOptions(PluginConfig):
    """Options of `FSDPBackend` besides the recipe's blocks `fsdp`, `optimizer`, `scheduler` and
    `lora`."""

    block_class_names: list[str] | None = None
    """Class names of the modules that FSDP wraps one by one, such as `[LlamaDecoderLayer]`; unset
    takes those of the model's family."""
    trainable_attr: str | None = None
    """Name of the part of the model that is trained, such as `model.layers` or `transformer`;
    everything outside it is frozen. Unset trains what the model's family trains."""


def chosen_blocks(policy: Policy, options: FSDPOptions) -> list[nn.Module]:
    """Return the modules that FSDP wraps one by one. Raises: RecipeError naming a class that no
    module has."""
    names = options.block_class_names
    if names is None:
        return blocks(policy)
    modules = list(policy.model.modules())
    present = {cls.__name__ for module in modules for cls in type(module).__mro__}
    if unknown := [name for name in names if name not in present]:
        known = ", ".join(sorted({type(module).__name__ for module in modules}))
        raise RecipeError(
            f"backend.block_class_names: no module of the model is a {' or '.join(unknown)}; its "
            f"classes are {known}"
        )
    return blocks(policy, names)


def freeze_the_rest(policy: Policy, options: FSDPOptions) -> None:
    """Freeze what is outside the trained part, after adapters were injected.

    Raises: RecipeError when the model has no such part, or nothing in it learns.
    """
    name = options.trainable_attr
    if name is None:
        return
    kept = {id(one) for one in _part(policy, name).parameters()}
    for parameter in policy.parameters():
        if id(parameter) not in kept:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in policy.parameters()):
        raise RecipeError(
            f"backend.trainable_attr: {name} holds no parameter that learns; name a part that is "
            "trained or gets adapters, or leave it out"
        )


def _part(policy: Policy, name: str) -> nn.Module:
    """Return the part of a policy that is an attribute of it, or a module of its model."""
    model = policy.model
    # Names are those before adapters, which put two levels above the model.
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    named = dict(inner.named_modules())
    found = named.get(name) or getattr(policy, name, None)
    if name and isinstance(found, nn.Module):
        return found
    known = []
    for one in named:
        if one and one.count(".") < DEPTH and not _has_index(one):
            known.append(one)
    raise RecipeError(
        f"backend.trainable_attr: the model has no module {name!r}; it has {', '.join(known)}"
    )


def _has_index(name: str) -> bool:
    return any(part.isdigit() for part in name.split("."))
