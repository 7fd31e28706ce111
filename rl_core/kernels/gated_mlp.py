"""A gated MLP (SwiGLU, arXiv 2002.05202) that trains with half of the usual saved activations.

Of down(silu(gate(x)) * up(x)), gate(x) and up(x) are saved for the backward pass; elementwise
functions of them are recomputed. The forward pass gives bit-identical results. Nothing large is
changed in place: in bfloat16 that takes a processor twice as long as writing into memory that is
free again.

Axes: N rows, H hidden features, M intermediate features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn.functional import silu

from rl_core.kernels.autograd_context import AutogradContext
from rl_core.kernels.replace import Replaced, asked, replace_modules

PARTS = ("gate_proj", "up_proj", "down_proj")
"""Attribute names of the layers in transformers' MLPs."""
ALIKE = 1e-5
"""Largest relative difference between the outputs of two MLPs that compute the same in float32."""


class GatedMLP(nn.Module):
    """Gated MLP: down_proj(silu(gate_proj(x)) * up_proj(x))."""

    def __init__(self, gate_proj: nn.Module, up_proj: nn.Module, down_proj: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = gate_proj, up_proj, down_proj

    def forward(self, states: Tensor) -> Tensor:
        """Map the states [..., H] to [..., H]."""
        parts = [self.gate_proj, self.up_proj, self.down_proj]
        if torch.is_grad_enabled() and all(_is_plain(part, states.dtype) for part in parts):
            gate, up, down = (part.weight for part in parts)
            return _Gated.apply(states, gate, up, down)  # type: ignore[return-value]
        return self.down_proj(silu(self.gate_proj(states)) * self.up_proj(states))


def use_gated_mlps(model: nn.Module) -> Replaced:
    """Replace the MLPs of a transformers model that compute the same formula by `GatedMLP`."""
    return replace_modules(model, _same_as)


def _same_as(mlp: nn.Module) -> GatedMLP | None:
    """Return a GatedMLP with the layers of `mlp` if both give the same output for a probe; else
    None."""
    named = {name: getattr(mlp, name, None) for name in PARTS}
    learning = {name for name, _ in mlp.named_parameters()}
    if isinstance(mlp, GatedMLP) or learning != {f"{name}.weight" for name in PARTS}:
        return None
    if not all(type(layer) is nn.Linear for layer in named.values()):
        return None
    if any(weight.is_meta for weight in mlp.parameters()):
        return None  # nothing to compare by
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
    # The difference is relative: small weights give small results. An output of zero would prove
    # nothing.
    difference, size = (theirs.float() - own.float()).norm(), theirs.float().norm()
    if difference <= ALIKE * size and size > 0:
        return ours
    return None


def _is_plain(layer: nn.Module, dtype: torch.dtype) -> bool:
    """Return True if a layer only multiplies by an unsharded matrix of this format: no bias, no
    hooks, no replaced forward."""
    if type(layer) is not nn.Linear or layer.bias is not None or layer.weight.dtype != dtype:
        return False
    # torch can add hooks but not list them; this can go when it can.
    changed = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return not changed and not isinstance(layer.weight, DTensor)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: AutogradContext, states: Tensor, gate_MH: Tensor, up_MH: Tensor, down_HM: Tensor
    ) -> Tensor:
        states_NH = states.reshape(-1, states.shape[-1])
        gated_NM, raised_NM = states_NH @ gate_MH.t(), states_NH @ up_MH.t()
        ctx.save_for_backward(states, gated_NM, raised_NM, gate_MH, up_MH, down_HM)
        made_NH = (silu(gated_NM) * raised_NM) @ down_HM.t()
        # Not `view`, which autograd would track: models may add to the result in place (Llama 4's
        # experts).
        return torch.ops.aten._unsafe_view(made_NH, [*states.shape[:-1], len(down_HM)])

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: AutogradContext, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        states, gated_NM, raised_NM, gate_MH, up_MH, down_HM = ctx.saved_tensors
        wants_states, *wants = ctx.needs_input_grad
        grad_NH, states_NH = (one.reshape(-1, one.shape[-1]) for one in (grad, states))
        opened_NM = silu(gated_NM)
        free_NM = opened_NM * raised_NM
        grad_down = grad_NH.t() @ free_NM if wants[2] else None
        grad_NM = grad_NH @ down_HM
        # Into memory that is no longer needed.
        grad_raised_NM = torch.mul(opened_NM, grad_NM, out=free_NM)
        slope_NM = torch.mul(grad_NM, raised_NM, out=opened_NM)
        grad_gated_NM = torch.ops.aten.silu_backward.grad_input(
            slope_NM, gated_NM, grad_input=grad_NM
        )
        grad_gate = grad_gated_NM.t() @ states_NH if wants[0] else None
        grad_up = grad_raised_NM.t() @ states_NH if wants[1] else None
        if not wants_states:
            return None, grad_gate, grad_up, grad_down
        grad_states_NH = grad_gated_NM @ gate_MH
        torch.addmm(grad_states_NH, grad_raised_NM, up_MH, out=grad_states_NH)
        return grad_states_NH.view(states.shape), grad_gate, grad_up, grad_down
