"""A gated MLP whose layers have adapters (LoRA, arXiv 2106.09685), trained with half of what is
usually kept.

As in `gated_mlp`, what comes element by element from gate(x) and up(x) is computed again on the way
back; the layers are those of `adapted_linear`, and on the way forward all is the same, bit by bit.

Axes: N rows, H hidden features, M features between, R the adapters' rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import silu

from rl_core.kernels.adapted_linear import Parts, gradients, product, state_gradient, trained_parts
from rl_core.kernels.float32_matmul import product_dtype
from rl_core.kernels.gate_backward import backward_of_gate


def adapted_mlp(states: Tensor, layers: Sequence[nn.Module]) -> Tensor | None:
    """down(silu(gate(states)) * up(states)), [..., H]; None where the layers are anything but
    plainly adapted.

    Args: layers: gate, up and down.
    """
    found = [_parts(layer, states) for layer in layers]
    parts = [one for one in found if one is not None]
    if len(parts) < len(found):
        return None
    weights = [layer.weight for base, down, up, _ in parts for layer in (base, down, up)]
    return _AdaptedGated.apply(states, [one.scaling for one in parts], *weights)  # type: ignore[return-value]


def _parts(layer: nn.Module, states: Tensor) -> Parts | None:
    parts = trained_parts(layer, states)
    hooked = layer._forward_hooks or layer._forward_pre_hooks or "forward" in vars(layer)
    return None if parts is None or parts.base.bias is not None or hooked else parts


class _AdaptedGated(torch.autograd.Function):
    """Products are computed in the processor's format; what layers give to each other is in that of
    the states."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, scalings: list[float], *weights: Tensor) -> Tensor:
        computed, given = product_dtype(states), states.dtype
        gate, up, down = _by_layer(weights)
        states_NH = states.reshape(-1, states.shape[-1]).to(computed)
        gated_NM, gate_NR = product(states_NH, gate, scalings[0])
        raised_NM, up_NR = product(states_NH, up, scalings[1])
        gated_NM, raised_NM = gated_NM.to(given), raised_NM.to(given)
        whole_NH, down_NR = product((silu(gated_NM) * raised_NM).to(computed), down, scalings[2])
        ctx.save_for_backward(states, gated_NM, raised_NM, gate_NR, up_NR, down_NR, *weights)
        ctx.scalings = scalings
        # No view for autograd: models may add to what they are given in place (Llama 4's experts).
        return torch.ops.aten._unsafe_view(
            whole_NH.to(given), [*states.shape[:-1], whole_NH.shape[1]]
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        states, gated_NM, raised_NM, gate_NR, up_NR, down_NR, *weights = ctx.saved_tensors
        computed, given = gate_NR.dtype, states.dtype
        gate, up, down = _by_layer(weights)
        states_NH, grad_NH = (one.reshape(-1, one.shape[-1]).to(computed) for one in (states, grad))
        opened_NM = silu(gated_NM)
        product_NM = opened_NM * raised_NM
        *of_down, grad_NR = gradients(
            grad_NH, product_NM.to(computed), down_NR, down, ctx.scalings[2]
        )
        grad_NM = state_gradient(grad_NH, grad_NR, down).to(given)
        grads_NM = backward_of_gate(grad_NM, gated_NM, raised_NM, opened_NM, free_NM=product_NM)
        grad_gated_NM, grad_raised_NM = (one.to(computed) for one in grads_NM)
        *of_gate, gate_grad_NR = gradients(grad_gated_NM, states_NH, gate_NR, gate, ctx.scalings[0])
        *of_up, up_grad_NR = gradients(grad_raised_NM, states_NH, up_NR, up, ctx.scalings[1])
        learnt = (None, *of_gate, None, *of_up, None, *of_down)
        if not ctx.needs_input_grad[0]:
            return None, None, *learnt
        grad_states_NH = state_gradient(grad_gated_NM, gate_grad_NR, gate)
        state_gradient(grad_raised_NM, up_grad_NR, up, onto_NI=grad_states_NH)
        return grad_states_NH.to(given).view_as(states), None, *learnt


def _by_layer(weights: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """Base, A and B of each layer."""
    return [weights[start : start + 3] for start in range(0, len(weights), 3)]
