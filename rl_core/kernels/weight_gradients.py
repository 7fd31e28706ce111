"""Gradients of the weights of linear layers, grad.T @ states, where a processor multiplies in tiles (AMX).

oneDNN multiplies at half its speed when the left side lies transposed. Copying one side into the other order first
costs less than that, if it is the narrower one and a piece of it at a time stays in the processor's cache
(`make bench-products`).

Axes: N rows, O features out, I features in.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rl_core.kernels.float32_matmul import multiplies_in_tiles

PIECE = 2**17
"""Elements that are copied at a time."""
NARROW = 0.5
"""The narrower side is copied where its width is at most this share of the other's."""


def weight_gradients(grads_NO: Sequence[Tensor], states_NI: Tensor) -> list[Tensor]:
    """One [O, I] for each layer that read the same states."""
    reads = states_NI.shape[1]
    states_IN: Tensor | None = None
    found = []
    for grad_NO in grads_NO:
        makes = grad_NO.shape[1]
        if min(reads, makes) > NARROW * max(reads, makes) or not multiplies_in_tiles(grad_NO.device, grad_NO.dtype):
            found.append(grad_NO.t() @ states_NI)
        elif makes < reads:
            found.append(transposed(grad_NO) @ states_NI)
        else:
            states_IN = transposed(states_NI) if states_IN is None else states_IN
            found.append(transposed(states_IN @ grad_NO))
    return found


def transposed(matrix: Tensor) -> Tensor:
    """A contiguous copy of matrix.T."""
    rows, columns = matrix.shape
    copy = matrix.new_empty(columns, rows)
    step = max(PIECE // columns, 1)
    for start in range(0, rows, step):
        copy[:, start : start + step] = matrix[start : start + step].t()
    return copy
