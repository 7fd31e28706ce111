"""Type of the context that autograd passes to a function of this project."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class AutogradContext(Protocol):
    """The first argument of `forward` and `backward` of a `torch.autograd.Function`.

    torch types it for functions that save one tensor. A function that keeps more on it than tensors
    names that in a protocol derived from this one.
    """

    saved_tensors: tuple[Tensor, ...]
    """Arguments of `save_for_backward`."""
    needs_input_grad: tuple[bool, ...]
    """For each argument of `forward`, whether anything before it learns."""

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for the backward pass."""

    def mark_non_differentiable(self, *results: Tensor) -> None:
        """Say that these results of `forward` have no gradient."""
