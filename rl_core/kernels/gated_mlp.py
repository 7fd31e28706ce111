"""A gated MLP (SwiGLU, arXiv 2002.05202) that trains with half of what the usual one keeps for the
backward pass.

down(silu(gate(x)) * up(x)): the products' results, gate(x) and up(x), are kept; what comes from
them element by element is computed again. On the way forward it is the same, bit by bit. Nothing
large is changed in place: in bfloat16 that takes a processor twice as long as writing into memory
that is free again.

Axes: N rows, H hidden features, M features between.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn.functional import silu

from rl_core.kernels.adapted_mlp import adapted_mlp
from rl_core.kernels.gate_backward import backward_of_gate
from rl_core.kernels.replace import Replaced, asked, replace_modules

PARTS = ("gate_proj", "up_proj", "down_proj")
"""What transformers calls the layers."""
ALIKE = 1e-5
"""Relative difference up to which two MLPs are the same one in float32."""


class GatedMLP(nn.Module):
    """down_proj(silu(gate_proj(x)) * up_proj(x))."""

    def __init__(self, gate_proj: nn.Module, up_proj: nn.Module, down_proj: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = gate_proj, up_proj, down_proj

    def forward(self, states: Tensor) -> Tensor:
        """The states [..., H] to [..., H]."""
        parts = [self.gate_proj, self.up_proj, self.down_proj]
        if torch.is_grad_enabled() and all(_is_plain(part, states.dtype) for part in parts):
            gate, up, down = (part.weight for part in parts)
            return _Gated.apply(states, gate, up, down)  # type: ignore[return-value]
        if torch.is_grad_enabled() and all(hasattr(part, "lora_A") for part in parts):
            adapted = adapted_mlp(states, parts)
            if adapted is not None:
                return adapted
        return self.down_proj(silu(self.gate_proj(states)) * self.up_proj(states))


def use_gated_mlps(model: nn.Module) -> Replaced:
    """Put this MLP in the place of those of a transformers model that compute the same."""
    return replace_modules(model, _same_as)


def _same_as(mlp: Any) -> GatedMLP | None:
    """This MLP with another one's layers, where both give the same."""
    named = {name: getattr(mlp, name, None) for name in PARTS}
    learning = {name for name, _ in mlp.named_parameters()}
    if isinstance(mlp, GatedMLP) or learning != {f"{name}.weight" for name in PARTS}:
        return None
    if not all(type(layer) is nn.Linear for layer in named.values()):
        return None
    layers: dict[str, Any] = named
    ours, weight = GatedMLP(**layers), layers["gate_proj"].weight
    probe = (
        torch.linspace(-3.0, 3.0, 2 * weight.shape[1], dtype=weight.dtype)
        .view(2, -1)
        .to(weight.device)
    )
    theirs, own = asked(mlp, probe), asked(ours, probe)
    if not isinstance(theirs, Tensor) or own is None or theirs.shape != own.shape:
        return None
    # By their size: small weights make small results, and none at all would prove nothing.
    difference, size = (theirs.float() - own.float()).norm(), theirs.float().norm()
    return ours if difference <= ALIKE * size and size > 0 else None


def _is_plain(layer: Any, dtype: torch.dtype) -> bool:
    """Whether a layer is no more than a product with a matrix of this format that lies here as a
    whole."""
    if type(layer) is not nn.Linear or layer.bias is not None or layer.weight.dtype != dtype:
        return False
    changed = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return not changed and not isinstance(layer.weight, DTensor)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, states: Tensor, gate_MH: Tensor, up_MH: Tensor, down_HM: Tensor
    ) -> Tensor:
        states_NH = states.reshape(-1, states.shape[-1])
        gated_NM, raised_NM = states_NH @ gate_MH.t(), states_NH @ up_MH.t()
        ctx.save_for_backward(states, gated_NM, raised_NM, gate_MH, up_MH, down_HM)
        made_NH = (silu(gated_NM) * raised_NM) @ down_HM.t()
        # No view for autograd: models may add to what they are given in place (Llama 4's experts).
        return torch.ops.aten._unsafe_view(made_NH, [*states.shape[:-1], len(down_HM)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        states, gated_NM, raised_NM, gate_MH, up_MH, down_HM = ctx.saved_tensors
        wants_states, *wants = ctx.needs_input_grad
        grad_NH, states_NH = (one.reshape(-1, one.shape[-1]) for one in (grad, states))
        opened_NM = silu(gated_NM)
        free_NM = opened_NM * raised_NM
        grad_down = grad_NH.t() @ free_NM if wants[2] else None
        grads = backward_of_gate(grad_NH @ down_HM, gated_NM, raised_NM, opened_NM, free_NM)
        grad_gated_NM, grad_raised_NM = grads
        grad_gate = grad_gated_NM.t() @ states_NH if wants[0] else None
        grad_up = grad_raised_NM.t() @ states_NH if wants[1] else None
        if not wants_states:
            return None, grad_gate, grad_up, grad_down
        grad_states_NH = grad_gated_NM @ gate_MH
        torch.addmm(grad_states_NH, grad_raised_NM, up_MH, out=grad_states_NH)
        return grad_states_NH.view(states.shape), grad_gate, grad_up, grad_down
