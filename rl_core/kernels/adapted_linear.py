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
    """Parts of an adapted layer, which computes base(x) + scaling * up(down(x))."""

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
    if up.bias is not None:
        return None
    return Parts(base, down, up, layer.scaling[active[0]])


class AdaptedLinear(lora.Linear):
    """peft's layer, with scaling and addition fused into its products where its parts are plain."""

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        """Map the states [..., I] to [..., O]."""
        parts = None if args or kwargs else plain_parts(self)
        if parts is None or parts.base.weight.requires_grad or x.dtype != parts.base.weight.dtype:
            return super().forward(x, *args, **kwargs)
        base, down, up, scaling = parts
        states_NI = x.reshape(-1, x.shape[-1])
        whole_NO: Any = _Adapted.apply(
            states_NI, base.weight, base.bias, down.weight, up.weight, scaling
        )
        # Not within it: some models go on in place, and a function's output must be no view then.
        return whole_NO.view(*x.shape[:-1], base.out_features)


class _AdaptedContext(AutogradContext, Protocol):
    scaling: float


class _Adapted(torch.autograd.Function):
    """Products are computed in the processor's format, and rounded to that of the states once, at
    the end."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: _AdaptedContext,
        states: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        down_RI: Tensor,
        up_OR: Tensor,
        scaling: float,
    ) -> Tensor:
        states_NI = states.reshape(-1, states.shape[-1]).to(product_dtype(states))
        weight, down, up = (one.to(states_NI.dtype) for one in (weight_OI, down_RI, up_OR))
        narrow_NR = (states_NI @ down.t()).mul_(scaling)
        whole_NO = narrow_NR @ up.t()
        torch.addmm(whole_NO, states_NI, weight.t(), out=whole_NO)
        if bias_O is not None:
            whole_NO.add_(bias_O)
        ctx.save_for_backward(states, narrow_NR, weight_OI, down_RI, up_OR)
        ctx.scaling = scaling
        return whole_NO.to(states.dtype)

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: _AdaptedContext, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        states, narrow_NR, weight_OI, down_RI, up_OR = ctx.saved_tensors
        states_NI, grad_NO = (
            one.reshape(-1, one.shape[-1]).to(narrow_NR.dtype) for one in (states, grad)
        )
        weight, down, up = (one.to(narrow_NR.dtype) for one in (weight_OI, down_RI, up_OR))
        grad_NR = (grad_NO @ up).mul_(ctx.scaling)
        grad_down_RI, grad_up_OR = grad_NR.t() @ states_NI, grad_NO.t() @ narrow_NR
        learnt = grad_down_RI.to(down_RI.dtype), grad_up_OR.to(up_OR.dtype)
        if not ctx.needs_input_grad[0]:
            return None, None, None, *learnt, None
        grad_NI = grad_NR @ down
        torch.addmm(grad_NI, grad_NO, weight, out=grad_NI)
        return grad_NI.to(states.dtype).view_as(states), None, None, *learnt, None


def _is_plain(linear: nn.Module) -> bool:
    """Return True if a layer is only a product with a matrix that this process holds as a whole."""
    # torch can add hooks but not list them; this can go when it can.
    changed = linear._forward_hooks or linear._forward_pre_hooks or "forward" in vars(linear)
    return type(linear) is nn.Linear and not changed and not isinstance(linear.weight, DTensor)
