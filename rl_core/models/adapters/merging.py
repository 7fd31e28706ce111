"""Merging of adapters into weights, for exporting or sending a model without adapters.

A matrix that is used in several places (a head tied to the embedding) may be adapted in only one of
them. After merging, the places hold different matrices: such a model is untied, and every place is
written or sent separately.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rl_core.errors import ModelError
from rl_core.models.adapters.lora import TRAINED, inject_lora, is_adapter, is_averaged
from rl_core.models.policy import Policy
from schemas.recipe import LoraConfig

if TYPE_CHECKING:
    from peft.tuners.lora import LoraLayer

    pass

Of = Callable[[str], Tensor]
"""Function that returns a whole parameter by its name."""


@dataclass(frozen=True)
class Adapted:
    """A weight with an adapter."""

    name: str
    """Name of the base's weight, among the parameters of the model with adapters."""
    layer: LoraLayer
    """The peft layer around the weight."""
    path: str
    """Path of that layer."""

    @property
    def factors(self) -> tuple[str, str]:
        """Names of the two low-rank matrices A and B."""
        if TRAINED in self.layer.lora_A:
            return f"{self.path}.lora_A.{TRAINED}.weight", f"{self.path}.lora_B.{TRAINED}.weight"
        return f"{self.path}.lora_embedding_A.{TRAINED}", f"{self.path}.lora_embedding_B.{TRAINED}"

    def delta(self, of: Of) -> Tensor:
        """Return the adapter's contribution to the weight, float32, in its shape. Raises:
        ModelError on an unknown kind of layer.

        Args: of: returns the low-rank matrices, whole.
        """
        from peft.tuners import lora

        down, up = (of(name).float() for name in self.factors)
        scaling = self.layer.scaling[TRAINED]
        if isinstance(self.layer, lora.ParamWrapper) and self.layer.num_experts > 1:
            # A is [experts * rank, in], B is [out, rank * experts]: an expert's rows, and every so
            # many columns.
            down_ERI = down.view(self.layer.num_experts, -1, down.shape[-1])
            up_ORE = up.view(up.shape[0], -1, self.layer.num_experts)
            # peft has no public name for this; it can go when it has.
            swapped = self.layer._did_swap_in_out_features
            return (
                torch.einsum("ore,eri->eoi" if swapped else "ore,eri->eio", up_ORE, down_ERI)
                * scaling
            )
        if isinstance(self.layer, lora.Embedding):
            return (up @ down).T * scaling
        if isinstance(self.layer, lora.Linear | lora.ParamWrapper):
            delta = (up @ down) * scaling
            if getattr(self.layer, "fan_in_fan_out", False):
                return delta.T
            return delta
        base = self.layer.get_base_layer()
        if isinstance(base, nn.modules.conv._ConvNd) and base.groups == 1:
            return (up.flatten(1) @ down.flatten(1)).view(base.weight.shape) * scaling
        raise ModelError(
            f"{self.path}: an adapter on a {type(base).__name__} cannot be merged; set "
            "lora.export: adapter"
        )


def adapted_weights(model: nn.Module) -> dict[str, Adapted]:
    """Return every weight with an adapter, by its name. Raises: ModelError when an adapter belongs
    to none."""
    from peft.tuners.lora import LoraLayer

    found: dict[str, Adapted] = {}
    for path, layer in model.named_modules():
        if isinstance(layer, LoraLayer) and (
            TRAINED in layer.lora_A or TRAINED in layer.lora_embedding_A
        ):
            name = f"{path}.{_below(layer)}"
            found[name] = Adapted(name, layer, path)
    known = {factor for one in found.values() for factor in one.factors}
    for name, _ in model.named_parameters():
        if is_adapter(name) and not is_averaged(name) and name not in known:
            raise ModelError(
                f"{name} cannot be merged into a weight; use lora.export: adapter and sync mode "
                "adapter"
            )
    return found


def places(model: nn.Module) -> dict[str, list[str]]:
    """Return all names of each parameter by its first one: several if several modules share it."""
    names: dict[int, list[str]] = {}
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(path, recurse=False):
            names.setdefault(id(parameter), []).append(name)
    return {several[0]: several for several in names.values()}


def unties(model: nn.Module, adapted: dict[str, Adapted]) -> bool:
    """Return True if merging unties matrices: an adapter belongs to one that is used in several
    places."""
    for names in places(model).values():
        if len(names) > 1 and any(name in adapted for name in names):
            return True
    return False


def untie(model: nn.Module) -> None:
    """Give every place of a parameter its own copy, and record that in the configuration, in
    place."""
    from transformers import PreTrainedModel

    for first, *others in places(model).values():
        for name in others:
            path, _, own = name.rpartition(".")
            kept = model.get_parameter(first)
            setattr(
                model.get_submodule(path),
                own,
                nn.Parameter(kept.detach().clone(), kept.requires_grad),
            )
    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            for config in (module.config, module.config.get_text_config()):
                if getattr(config, "tie_word_embeddings", False):
                    config.tie_word_embeddings = False
            module.all_tied_weights_keys = {}


def prepare_for_merged(policy: Policy, lora: LoraConfig) -> None:
    """Untie a policy without adapters, in place, if merging such adapters would."""
    if all(len(names) == 1 for names in places(policy).values()):
        return
    inject_lora(policy, lora, seed=0)
    untied = unties(policy, adapted_weights(policy))
    policy.model = policy.model.unload()
    if untied:
        untie(policy)


def _below(layer: LoraLayer) -> str:
    """Return the name of the adapted parameter below its layer; layers around several parameters of
    a module are nested."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    depth = "base_layer."
    inner = layer.base_layer
    while isinstance(inner, BaseTunerLayer):
        outer: Any = inner
        depth, inner = depth + "base_layer.", outer.base_layer
    return depth + getattr(layer, "parameter_name", "weight")
