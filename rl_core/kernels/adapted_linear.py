"""A linear layer with an adapter (LoRA, arXiv 2106.09685) that trains with few passes over memory.

peft writes base(x) + scaling * B(A(x)) out, product by product: to scale and to add, it reads and
writes tensors of the layer's whole width several times, forward and backward. Here the scaling is
done where the adapter is narrow, and the base layer's product adds to what B gave, so that the sum
is rounded once. The other way around, a young adapter would be lost: in bfloat16, base(x) has steps
of 1/128 or 1/256 of itself, and an addition of less than half a step leaves it as it is.

Axes: N rows, I features in, O features out, R the adapter's rank.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from peft.tuners import lora
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor

from rl_core.kernels.autograd_context import AutogradContext
from rl_core.kernels.float32_matmul import product_dtype


class Parts(NamedTuple):
    """Parts of an adapted layer, which computes base(x) + scaling * up(down(dropout(x)))."""

    base: nn.Linear
    down_RI: nn.Linear
    up_OR: nn.Linear
    scaling: float
    dropout: nn.Module | None = None
    """None where it changes nothing."""


def plain_parts(layer: lora.Linear) -> Parts | None:
    """The parts of an adapted layer that is now no more than them, all of one format; None for any
    other.

    Such are layers with two active adapters or none, or cut over ranks.
    """
    if layer.disable_adapters or layer.merged or layer.lora_variant:
        return None
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if len(active) != 1:
        return None
    linears: list[Any] = [layer.base_layer, layer.lora_A[active[0]], layer.lora_B[active[0]]]
    if not all(map(_is_plain, linears)) or len({linear.weight.dtype for linear in linears}) > 1:
        return None
    base, down, up = linears
    if up.bias is not None:
        return None
    dropout = layer.lora_dropout[active[0]]
    is_inert = isinstance(dropout, nn.Identity) or not layer.training
    return Parts(base, down, up, layer.scaling[active[0]], None if is_inert else dropout)


class AdaptedLinear(lora.Linear):
    """peft's layer, with scaling and addition fused into its products where its parts are plain."""

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        """Map the states [..., I] to [..., O]."""
        parts = None if args or kwargs else plain_parts(self)
        if parts is None or parts.base.weight.requires_grad or x.dtype != parts.base.weight.dtype:
            return super().forward(x, *args, **kwargs)
        base, down, up, scaling, dropout = parts
        states_NI = x.reshape(-1, x.shape[-1])
        dropped_NI = None if dropout is None else dropout(states_NI)
        whole_NO: Any = _Adapted.apply(
            states_NI, dropped_NI, base.weight, base.bias, down.weight, up.weight, scaling
        )
        # Not within it: some models go on in place, and a function's output must be no view then.
        return whole_NO.view(*x.shape[:-1], base.out_features)


class _AdaptedContext(AutogradContext, Protocol):
    scaling: float
    drops: bool


class _Adapted(torch.autograd.Function):
    """Products are computed in the processor's format, and rounded to that of the states once, at
    the end."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: _AdaptedContext,
        states: Tensor,
        dropped: Tensor | None,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        down_RI: Tensor,
        up_OR: Tensor,
        scaling: float,
    ) -> Tensor:
        states_NI = states.to(product_dtype(states))
        weight, down, up = (one.to(states_NI.dtype) for one in (weight_OI, down_RI, up_OR))
        read = states if dropped is None else dropped
        narrow_NR = (read.to(states_NI.dtype) @ down.t()).mul_(scaling)
        whole_NO = narrow_NR @ up.t()
        torch.addmm(whole_NO, states_NI, weight.t(), out=whole_NO)
        if bias_O is not None:
            whole_NO.add_(bias_O)
        ctx.save_for_backward(read, narrow_NR, weight_OI, down_RI, up_OR)
        ctx.scaling, ctx.drops = scaling, dropped is not None
        return whole_NO.to(states.dtype)

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: _AdaptedContext, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        read, narrow_NR, weight_OI, down_RI, up_OR = ctx.saved_tensors
        read_NI, grad_NO = (one.to(narrow_NR.dtype) for one in (read, grad))
        weight, down, up = (one.to(narrow_NR.dtype) for one in (weight_OI, down_RI, up_OR))
        grad_NR = (grad_NO @ up).mul_(ctx.scaling)
        grad_down_RI, grad_up_OR = grad_NR.t() @ read_NI, grad_NO.t() @ narrow_NR
        learnt = grad_down_RI.to(down_RI.dtype), grad_up_OR.to(up_OR.dtype)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, *learnt, None
        grad_NI = grad_NR @ down
        if ctx.drops:
            whole_NI = grad_NO @ weight
            return whole_NI.to(read.dtype), grad_NI.to(read.dtype), None, None, *learnt, None
        torch.addmm(grad_NI, grad_NO, weight, out=grad_NI)
        return grad_NI.to(read.dtype), None, None, None, *learnt, None


def _is_plain(linear: nn.Module) -> bool:
    """Return True if a layer is only a product with a matrix that this process holds as a whole."""
    # torch can add hooks but not list them; this can go when it can.
    changed = linear._forward_hooks or linear._forward_pre_hooks or "forward" in vars(linear)
    return type(linear) is nn.Linear and not changed and not isinstance(linear.weight, DTensor)
