"""Causal attention in bfloat16 on a CPU that multiplies in tiles (AMX): forward by torch, backward in whole products.

torch's backward cuts short rows into products too small for the tiles, and allocates memory for each of them; for rows
of a hundred tokens it takes four times as long as five batched products that fill a whole matrix of attention weights
(`make bench-attention`). Rows longer than `MAX_LENGTH` are torch's both ways.

Axes: B rows, H query heads, K key heads, L positions, D head size. Softmax backward: dS = P * (dP - rowsum(dO * O)), as
in FlashAttention (arXiv 2205.14135, algorithm 4).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_core.wide_products import multiplies_in_tiles

MAX_LENGTH = 512
"""Positions of a row, above which torch is quicker."""
CHUNK_WEIGHTS = 2**19
"""Attention weights that exist at once; those of one row at least."""
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def suits(
    query_BHLD: Tensor,
    *,
    is_causal: bool,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> bool:
    """Whether `attend_causally` is right and quick, by what transformers passes to an attention without a mask."""
    is_plain = is_causal and not dropout and scaling is not None and position_bias is None
    return is_plain and query_BHLD.shape[2] <= MAX_LENGTH and multiplies_in_tiles(query_BHLD.device, query_BHLD.dtype)


def attend_causally(query_BHLD: Tensor, key_BKLD: Tensor, value_BKLD: Tensor, scale: float) -> Tensor:
    """softmax(scale * query @ key.T) @ value, where each position sees itself and those before it; [B, H, L, D].

    H is a multiple of K; adjacent query heads share a key head.
    """
    return _TileAttention.apply(query_BHLD, key_BKLD, value_BKLD, scale)  # type: ignore[no-any-return]


class _TileAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        out, normaliser_BHL = _forward(query, key, value, 0.0, True, scale=scale)
        ctx.save_for_backward(query, key, value, out, normaliser_BHL)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        _, heads, length, _ = grad.shape
        size = max(CHUNK_WEIGHTS // (heads * length * length), 1)
        saved: tuple[Any, ...] = ctx.saved_tensors
        chunks: Any = zip(*(tensor.split(size) for tensor in (grad, *saved)), strict=True)
        parts = [_gradients(*chunk, scale=ctx.scale) for chunk in chunks]
        return (*(torch.cat(part) for part in zip(*parts, strict=True)), None)


def _gradients(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, normaliser_BHL: Tensor, *, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Those of query, key and value.

    What is subtracted from a product (the normaliser, the row sum) rides along in columns of its own: the difference is
    rounded to bfloat16 once, not each of its sides.
    """
    rows, _, length, size = query.shape
    matrices = rows * key.shape[1]
    row_sum_BHL = torch.linalg.vecdot(grad.float(), out.float())
    ones = key.new_ones(()).expand(*key.shape[:-1], 2)
    query = _with_columns(query * scale, -normaliser_BHL).view(matrices, -1, size + 2)
    grad = _with_columns(grad, -row_sum_BHL).view(matrices, -1, size + 2)
    key, value = (torch.cat([tensor, ones], -1).view(matrices, length, size + 2) for tensor in (key, value))
    weights = torch.bmm(query, key.mT).exp_()
    weights.view(-1, length, length).tril_()
    slopes = torch.bmm(grad, value.mT).mul_(weights)
    grad_query = torch.bmm(slopes, key)[..., :size].mul_(scale)
    grad_key = torch.bmm(slopes.mT, query)[..., :size]
    grad_value = torch.bmm(weights.mT, grad)[..., :size]
    shape = rows, -1, length, size
    return grad_query.view(shape), grad_key.view(shape), grad_value.view(shape)


def _with_columns(tensor: Tensor, column: Tensor) -> Tensor:
    """The tensor with two columns more, whose sum is the given one in twice the digits of bfloat16."""
    high = column.to(tensor.dtype)
    low = (column - high).to(tensor.dtype)
    return torch.cat([tensor, high[..., None], low[..., None]], -1)
