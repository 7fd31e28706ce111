"""A linear layer with an adapter (LoRA, arXiv 2106.09685) that trains with few passes over memory.

peft writes base(x) + scaling * B(A(x)) out, product by product: to scale and to add, it reads and
writes tensors of the layer's whole width several times, forward and backward. Here the scaling is
done where the adapter is narrow, and what B gives is added by its product itself.

Axes: N rows, I features in, O features out, R the adapter's rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from peft.tuners import lora
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from rl_core.kernels.float32_matmul import product_dtype


class Parts(NamedTuple):
    """What an adapted layer computes: base(x) + scaling * up(down(x))."""

    base: nn.Linear
    down_RI: nn.Linear
    up_OR: nn.Linear
    scaling: float


def plain_parts(layer: lora.Linear) -> Parts | None:
    """The parts of an adapted layer that is now no more than them, all of one format; None for any
    other.

    Such are layers with two active adapters or none, with dropout at work, or cut over ranks.
    """
    if layer.disable_adapters or layer.merged or layer.lora_variant:
        return None
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if len(active) != 1 or (
        layer.training and not isinstance(layer.lora_dropout[active[0]], nn.Identity)
    ):
        return None
    linears: list[Any] = [layer.base_layer, layer.lora_A[active[0]], layer.lora_B[active[0]]]
    if not all(map(_is_plain, linears)) or len({linear.weight.dtype for linear in linears}) > 1:
        return None
    base, down, up = linears
    return None if up.bias is not None else Parts(base, down, up, layer.scaling[active[0]])


def trained_parts(layer: nn.Module, states: Tensor) -> Parts | None:
    """The parts of a layer that learns by `product` and `gradients`, given such states; None for
    any other."""
    parts = plain_parts(layer) if isinstance(layer, AdaptedLinear) else None
    if parts is None or parts.base.weight.requires_grad or states.dtype != parts.base.weight.dtype:
        return None
    return parts


class AdaptedLinear(lora.Linear):
    """peft's layer, where it is plain with one product less and nothing scaled or added by
    itself."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The states [..., I] to [..., O]."""
        parts = None if args or kwargs else trained_parts(self, x)
        if parts is None:
            return super().forward(x, *args, **kwargs)
        base, down, up, scaling = parts
        states_NI = x.reshape(-1, x.shape[-1])
        whole_NO: Any = _Adapted.apply(
            states_NI, base.weight, base.bias, down.weight, up.weight, scaling
        )
        # Not within it: some models go on in place, which a function's output must not be a view
        # for.
        return whole_NO.view(*x.shape[:-1], base.out_features)


def product(
    states_NI: Tensor, weights: Sequence[Tensor], scaling: float, bias_O: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """What a layer makes of the states, [N, O], and its adapter's narrow part of that, [N, R].

    Args: states_NI: in the format of products, see `product_dtype`; so is what comes out. weights:
    the base's [O, I], A's [R, I] and B's [O, R].
    """
    weight_OI, down_RI, up_OR = (weight.to(states_NI.dtype) for weight in weights)
    narrow_NR = (states_NI @ down_RI.t()).mul_(scaling)
    whole_NO = nn.functional.linear(
        states_NI, weight_OI, None if bias_O is None else bias_O.to(states_NI.dtype)
    )
    torch.addmm(whole_NO, narrow_NR, up_OR.t(), out=whole_NO)
    return whole_NO, narrow_NR


def gradients(
    grad_NO: Tensor, states_NI: Tensor, narrow_NR: Tensor, weights: Sequence[Tensor], scaling: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Those of A [R, I] and of B [O, R], and what goes on to the states beside the base: [N, R], to
    be multiplied by A.

    Args: as of `product`, all in its format; those of A and B come in that of the weights.
    """
    _, down_RI, up_OR = weights
    grad_NR = (grad_NO @ up_OR.to(grad_NO.dtype)).mul_(scaling)
    grad_down_RI, grad_up_OR = grad_NR.t() @ states_NI, grad_NO.t() @ narrow_NR
    return grad_down_RI.to(down_RI.dtype), grad_up_OR.to(up_OR.dtype), grad_NR


def state_gradient(
    grad_NO: Tensor, grad_NR: Tensor, weights: Sequence[Tensor], onto_NI: Tensor | None = None
) -> Tensor:
    """The gradient of the states [N, I], added to another one where there is one, in place."""
    weight_OI, down_RI, _ = (weight.to(grad_NO.dtype) for weight in weights)
    grad_NI = (
        grad_NO @ weight_OI
        if onto_NI is None
        else torch.addmm(onto_NI, grad_NO, weight_OI, out=onto_NI)
    )
    return torch.addmm(grad_NI, grad_NR, down_RI, out=grad_NI)


class _Adapted(torch.autograd.Function):
    """Products are computed in the processor's format, and rounded to that of the states once, at
    the end."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        states: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        down_RI: Tensor,
        up_OR: Tensor,
        scaling: float,
    ) -> Tensor:
        states_NI = states.reshape(-1, states.shape[-1]).to(product_dtype(states))
        whole_NO, narrow_NR = product(states_NI, (weight_OI, down_RI, up_OR), scaling, bias_O)
        ctx.save_for_backward(states, narrow_NR, weight_OI, down_RI, up_OR)
        ctx.scaling = scaling
        return whole_NO.to(states.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        states, narrow_NR, *weights = ctx.saved_tensors
        states_NI, grad_NO = (
            one.reshape(-1, one.shape[-1]).to(narrow_NR.dtype) for one in (states, grad)
        )
        grad_down_RI, grad_up_OR, grad_NR = gradients(
            grad_NO, states_NI, narrow_NR, weights, ctx.scaling
        )
        if not ctx.needs_input_grad[0]:
            return None, None, None, grad_down_RI, grad_up_OR, None
        grad_NI = state_gradient(grad_NO, grad_NR, weights)
        return grad_NI.to(states.dtype).view_as(states), None, None, grad_down_RI, grad_up_OR, None


def _is_plain(linear: Any) -> bool:
    """Whether a layer is no more than a product with a matrix that lies here as a whole."""
    changed = linear._forward_hooks or linear._forward_pre_hooks or "forward" in vars(linear)
    return type(linear) is nn.Linear and not changed and not isinstance(linear.weight, DTensor)
