"""RMSNorm (arXiv 1910.07467) that trains with few passes over memory and saves only its input and
one number per row for the backward pass.

transformers computes it in float32, operation by operation; each reads and writes a whole tensor,
and most save one. On a CPU that takes three times as long.

Axes: n features.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_core.kernels.autograd_context import AutogradContext
from rl_core.kernels.replace import Replaced, asked, replace_modules

EPS_NAMES = ("variance_epsilon", "eps")
"""Attribute names of the epsilon in transformers' norms."""
ALIKE = 1e-5
"""Largest difference between the outputs of two norms that compute the same in float32, relative
and absolute."""


class RMSNorm(nn.Module):
    """RMSNorm over the last axis: weight * x / sqrt(mean(x^2) + eps), with the quotient rounded to
    x's type first."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = weight, eps

    def forward(self, states: Tensor) -> Tensor:
        """Return the normalised states [..., n]."""
        if not states.is_cpu:
            return self.weight * nn.functional.rms_norm(states, states.shape[-1:], None, self.eps)
        if torch.is_grad_enabled():
            return _Norm.apply(states, self.weight, self.eps)  # type: ignore[return-value]
        return self.weight * _quotient(states, _mean_squares(states), self.eps)


def use_quick_norms(model: nn.Module) -> Replaced:
    """Replace the norms of a transformers model that compute the same formula by `RMSNorm`."""
    return replace_modules(model, _same_as)


def _same_as(norm: nn.Module) -> RMSNorm | None:
    """Return an RMSNorm with the weight of `norm` if both give the same output for a probe; else
    None."""
    if isinstance(norm, RMSNorm) or not type(norm).__name__.endswith("RMSNorm"):
        return None
    eps = next((getattr(norm, name) for name in EPS_NAMES if hasattr(norm, name)), None)
    parameters = dict(norm.named_parameters())
    if eps is None or [*parameters] != ["weight"] or parameters["weight"].is_meta:
        return None
    weight = parameters["weight"]
    ours = RMSNorm(weight, float(eps))
    probe = (
        torch.linspace(-2.0, 3.0, 2 * weight.numel(), dtype=weight.dtype)
        .view(2, -1)
        .to(weight.device)
    )
    theirs, own = asked(norm, probe), asked(ours, probe)
    if not isinstance(theirs, Tensor) or own is None or theirs.shape != own.shape:
        return None
    if torch.allclose(theirs.float(), own.float(), ALIKE, ALIKE):
        return ours
    return None


def _mean_squares(states: Tensor) -> Tensor:
    """Return the mean of the squares over the last axis, [..., 1], in float32 or better."""
    wide = torch.promote_types(states.dtype, torch.float32)
    norm = torch.linalg.vector_norm(states, dim=-1, keepdim=True, dtype=wide)
    return norm.square_().div_(states.shape[-1])


def _quotient(states: Tensor, mean_squares: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps), rounded once: BatchNorm in training mode with rows as
    channels computes it in one pass."""
    rows, variance = states.reshape(1, -1, states.shape[-1]), mean_squares.flatten()
    args = None, None, torch.zeros_like(variance), variance, False, 0.0, eps, False
    return torch.batch_norm(rows, *args).view(states.shape)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: AutogradContext, states: Tensor, weight: Tensor, eps: float) -> Tensor:
        squares = _mean_squares(states)
        quotient = _quotient(states, squares, eps)
        ctx.save_for_backward(states, weight, squares.add_(eps).rsqrt_())
        return weight * quotient

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: AutogradContext, grad: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None]:
        states, weight, scale = ctx.saved_tensors
        # With adapters the weight is frozen.
        wanted = [*ctx.needs_input_grad[:2], False]
        n, grad = states.shape[-1], grad.to(states.dtype)
        # This is the gradient of a LayerNorm with mean zero and this scale, except for the gradient
        # through the mean, which LayerNorm subtracts and which is added back below.
        grad_states, grad_weight, _ = torch.ops.aten.native_layer_norm_backward(
            grad,
            states,
            [n],
            torch.zeros_like(scale),
            scale,
            weight.to(scale.dtype),
            None,
            wanted,
        )
        if wanted[0]:
            taken = (grad @ weight.to(grad.dtype)[:, None]).to(scale.dtype).mul_(scale).div_(n)
            grad_states.add_(taken.to(grad.dtype))
        return grad_states, grad_weight.to(weight.dtype) if wanted[1] else None, None
