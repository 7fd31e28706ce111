"""Rotary position embeddings (RoPE, arXiv 2104.09864) in three passes over memory instead of five.

transformers turns queries and keys by making the turned half first, as a tensor of its own, and keeps it for the
backward pass. Here nothing but cosines and sines is kept: turning back is turning by the opposite angle.

Axes: D features of a head, whose first half turns with its second.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rl_core.kernels.replace import Replaced, asked

NAME = "apply_rotary_pos_emb"
"""What transformers calls the function, in the module of each family of models."""
PARAMETERS = ["q", "k", "cos", "sin", "unsqueeze_dim"]
"""What it takes."""
ALIKE = 1e-6
"""Difference up to which two rotations of numbers around 1 are the same one in float32."""


class Rotation:
    """transformers' function for queries and keys; on CPUs quicker.

    Args: theirs: the function whose place it takes, and which it leaves everything else to: other devices, and angles
    for a part of the features.
    """

    def __init__(self, theirs: Callable[..., tuple[Tensor, Tensor]]) -> None:
        self.theirs = theirs

    def __call__(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, unsqueeze_dim: int = 1) -> tuple[Tensor, Tensor]:
        """Both turned, [..., D]; an axis is put into the angles' at `unsqueeze_dim`, where the heads are."""
        if not (q.is_cpu and cos.shape[-1] == q.shape[-1] == k.shape[-1] and cos.dtype == q.dtype == k.dtype):
            return self.theirs(q, k, cos, sin, unsqueeze_dim)
        cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
        return _turned(q, cos, sin), _turned(k, cos, sin)


def use_quick_rotations(model: nn.Module) -> Replaced:
    """Put `Rotation` in the place of transformers' function where it gives the same.

    It is a module's global, so other models of the family have it too.
    """
    replaced = Replaced()
    for name in {type(module).__module__ for module in model.modules()}:
        theirs = getattr(sys.modules[name], NAME, None)
        if inspect.isfunction(theirs) and _is_same(theirs):
            setattr(sys.modules[name], NAME, Rotation(theirs))
            replaced.add(sys.modules[name], NAME, theirs)
    return replaced


def _is_same(theirs: Callable[..., Any]) -> bool:
    if [*inspect.signature(theirs).parameters] != PARAMETERS:
        return False
    # No two numbers are alike, nor are the angles of the two halves.
    query, key, cos, sin = torch.linspace(-2.0, 3.0, 64).view(4, 1, 2, 8)
    probe = query[None], key[None], cos, sin
    answer, own = asked(theirs, *probe), asked(Rotation(theirs), *probe)
    if not isinstance(answer, tuple) or own is None or len(answer) != len(own):
        return False
    return all(a.shape == b.shape and torch.allclose(a, b, ALIKE, ALIKE) for a, b in zip(answer, own, strict=True))


def _turned(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if torch.is_grad_enabled() and states.requires_grad:
        return _Turn.apply(states, cos, sin)  # type: ignore[return-value]
    return turn(states, cos, *sin.chunk(2, -1), sign=1)


def turn(states: Tensor, cos: Tensor, sin_low: Tensor, sin_high: Tensor, *, sign: int) -> Tensor:
    """low * cos - high * sin, high * cos + low * sin; with sign -1 the other way round."""
    low, high = states.chunk(2, -1)
    turned = states * cos
    for part, other, sine, factor in zip(
        turned.chunk(2, -1), (high, low), (sin_low, sin_high), (-sign, sign), strict=True
    ):
        part.addcmul_(other, sine, value=factor)
    return turned


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return turn(states, cos, *sin.chunk(2, -1), sign=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        cos, sin = ctx.saved_tensors
        sin_low, sin_high = sin.chunk(2, -1)
        return turn(grad, cos, sin_high, sin_low, sign=-1), None, None
