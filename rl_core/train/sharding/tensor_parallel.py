"""Tensor parallelism: each block's linear layers are cut over the ranks of a `tp` mesh
(Megatron-LM, arXiv 1909.08053).

A model is cut by its own `tp_plan` (transformers); this file adds what a plan leaves open. Adapters
follow the layer they belong to. Every other parameter becomes a DTensor that all tp ranks hold
whole, so that all parameters of a policy are on one mesh and norms, clipping, optimizers and
checkpoints need no special case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.placement_types import Placement

from rl_core.errors import ModelError
from rl_core.models.layer_types import sizes_of_layers

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import PreTrainedConfig, PreTrainedModel

_WHOLE = "replicate"
_PARTIAL_GRADIENT = "replicated_with_grad_allreduce"
"""Style of a weight that every rank holds whole but uses for its own heads only (Qwen3's q_norm and
k_norm)."""

_ADAPTER_STYLES = {
    "colwise": (_WHOLE, "colwise"),
    "colwise_gather_output": (_WHOLE, "colwise_gather_output"),
    "rowwise": ("rowwise", _WHOLE),
}
"""Styles of an adapter's A and B by that of its layer, so that B's output is laid out like the
layer's."""


def apply_tensor_parallel(model: PreTrainedModel, mesh: DeviceMesh) -> None:
    """Cut a transformers model (below any adapters) over a one-dimensional mesh, in place.

    Call it after adapters are injected and before the FSDP wrap. Every rank must hold the same
    whole weights; each keeps its slice, nothing is sent.
    Raises: ModelError when the model has no plan, does not divide, or an adapted layer cannot carry
    its adapter.
    """
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    check_tensor_parallel(model, mesh.size())
    styles = _styles(model, mesh.size())
    ties = list(_ties(model))
    names = {name for name, _ in model.named_parameters()} | {
        name for name, _ in model.named_modules()
    }
    cut = {
        name: style for name, style in styles.items() if style not in (_WHOLE, _PARTIAL_GRADIENT)
    }
    apply_tensor_parallelism(
        model, mesh, {name: style for name, style in cut.items() if name in names}
    )
    for module, name, owner, owned in ties:
        module._parameters[name] = owner._parameters[owned]
    _hold_whole(model, mesh, styles)


def check_tensor_parallel(model: PreTrainedModel, tp_size: int) -> None:
    """Check that a model has a plan, and that its heads and its MLP divide by `tp_size`.

    Raises: ModelError when not.
    """
    if not getattr(model, "tp_plan", None):
        raise ModelError(
            f"placement.tp_size is {tp_size}, but transformers has no tensor-parallel plan for "
            f"{type(model).__name__}; set placement.tp_size to 1"
        )
    sizes = _divided_sizes(model.config.get_text_config())
    common = math.gcd(*sizes.values())
    if common % tp_size:
        shape = ", ".join(f"{name} {size}" for name, size in sizes.items())
        fitting = ", ".join(str(size) for size in range(1, common + 1) if common % size == 0)
        raise ModelError(
            f"placement.tp_size {tp_size} does not divide {type(model).__name__} ({shape}); "
            f"sizes that fit: {fitting}"
        )


def _divided_sizes(config: PreTrainedConfig) -> dict[str, int]:
    names = (
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "moe_intermediate_size",
    )
    sizes = {name: sizes_of_layers(config, name) for name in names}
    return {name: math.gcd(*values) for name, values in sizes.items() if values}


def _styles(model: PreTrainedModel, tp_size: int) -> dict[str, str]:
    """Return the style of every planned module and of its own parameters, by name; a parameter
    comes before its module."""
    from transformers.distributed.parallel_utils import replace_layer_number_by_wildcard

    plan = model.tp_plan
    styles: dict[str, str | None] = {}
    handed_down: dict[str, str] = {}
    whole = _whole_vocabulary(model, tp_size)
    for name, module in model.named_modules():
        style = handed_down.get(name) or plan.get(replace_layer_number_by_wildcard(name))
        if any(module is one for one in whole):
            continue
        if style and (parts := _adapter_styles(name, module, style)):
            handed_down |= parts
            continue
        for parameter, _ in module.named_parameters(recurse=False):
            full_name = f"{name}.{parameter}"
            styles[full_name] = plan.get(replace_layer_number_by_wildcard(full_name), style)
        styles[name] = style
    return {name: style for name, style in styles.items() if style}


def _whole_vocabulary(model: PreTrainedModel, tp_size: int) -> list[nn.Module]:
    """Return the embeddings that stay whole: the vocabulary does not divide, or the plan leaves the
    input's alone."""
    from transformers.distributed.parallel_utils import replace_layer_number_by_wildcard

    # Any: families have embedding classes of their own, which all say how many rows they have.
    embedding: Any = model.get_input_embeddings()
    head = model.get_output_embeddings()
    name = next(name for name, module in model.named_modules() if module is embedding)
    if (
        embedding.num_embeddings % tp_size == 0
        and replace_layer_number_by_wildcard(name) in model.tp_plan
    ):
        return []
    return [module for module in (embedding, head) if module is not None]


def _adapter_styles(name: str, module: nn.Module, style: str) -> dict[str, str]:
    """Return the styles of an adapted layer's parts by name; empty for a layer without adapters."""
    from peft.tuners.lora import LoraLayer

    if not isinstance(module, LoraLayer):
        return {}
    if style not in _ADAPTER_STYLES:
        raise ModelError(
            f"lora.target_modules: {name} (layout {style!r}) cannot carry an adapter under "
            "tensor parallelism; leave it out, or set placement.tp_size to 1"
        )
    style_a, style_b = _ADAPTER_STYLES[style]
    parts = {f"{name}.base_layer": style}
    for adapter in module.lora_A:
        parts |= {f"{name}.lora_A.{adapter}": style_a, f"{name}.lora_B.{adapter}": style_b}
    return parts


def _ties(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module, str]]:
    """Yield parameters under a second name: module and name, then the module and name that come
    first."""
    first: dict[int, tuple[nn.Module, str]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            owner, owned = first.setdefault(id(parameter), (module, name))
            if owner is not module:
                yield module, name, owner, owned


def _hold_whole(model: nn.Module, mesh: DeviceMesh, styles: dict[str, str]) -> None:
    """Convert plain parameters to DTensors that are whole on every rank; their modules' forward
    still sees plain tensors."""
    # The old parameter is kept beside the new one, so that its id is not given to another.
    replaced: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}
    for module_name, module in model.named_modules():
        plain = {
            name: value
            for name, value in module._parameters.items()
            if value is not None and not isinstance(value, DTensor)
        }
        for name, value in plain.items():
            whole = DTensor.from_local(value.detach(), mesh, [Replicate()], run_check=False)
            new = nn.Parameter(whole, requires_grad=value.requires_grad)
            module._parameters[name] = replaced.setdefault(id(value), (value, new))[1]
        if plain:
            _see_local_values(
                module, list(plain), partial=styles.get(module_name) == _PARTIAL_GRADIENT
            )


def _see_local_values(module: nn.Module, names: list[str], *, partial: bool) -> None:
    """Wrap the forward. Args: partial: a rank's gradient is one summand of the whole gradient, not
    all of it."""
    original_forward = module.forward
    gradient: list[Placement] = [Partial() if partial else Replicate()]

    def forward_with_local_values(*args: object, **kwargs: object) -> object:
        held: dict[str, Any] = {name: module._parameters[name] for name in names}
        # FSDP sums what a layout calls partial when it reduces the gradient. Written into torch's
        # own table, since a plain tensor cannot be set where a parameter is registered.
        module._parameters.update(
            {name: value.to_local(grad_placements=gradient) for name, value in held.items()}
        )
        try:
            return original_forward(*args, **kwargs)
        finally:
            module._parameters.update(held)

    module.forward = forward_with_local_values  # type: ignore[method-assign]
