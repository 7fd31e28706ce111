"""Causal attention in bfloat16 on a CPU that multiplies in it: forward by torch, backward in whole products.

torch's backward cuts short rows into products too small for the processor, and allocates memory for each of them; for
rows of a hundred tokens it takes four times as long as five batched products that fill a whole matrix of attention
weights (`make bench-attention`). Rows longer than `MAX_LENGTH` are torch's both ways.

Axes: B rows, H query heads, K key heads, Q queries, L keys, D head size. Softmax backward: dS = P * (dP - rowsum(dO *
O)), as in FlashAttention (arXiv 2205.14135, algorithm 4).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_core.wide_products import multiplies_in_bfloat16

MAX_LENGTH = 512
"""Positions of a row, above which torch is quicker."""
CHUNK_WEIGHTS = 2**19
"""Attention weights that exist at once; those of one row at least."""
_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def suits(
    query_BHQD: Tensor,
    key_BKLD: Tensor,
    *,
    is_causal: bool,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> bool:
    """Whether `attend` is right and quick, by what transformers passes to an attention besides a mask."""
    is_plain = is_causal and not dropout and scaling is not None and position_bias is None
    return is_plain and key_BKLD.shape[2] <= MAX_LENGTH and multiplies_in_bfloat16(query_BHQD.device, query_BHQD.dtype)


def attend(
    query_BHQD: Tensor, key_BKLD: Tensor, value_BKLD: Tensor, scale: float, mask_B1QL: Tensor | None = None
) -> Tensor:
    """softmax(scale * query @ key.T + mask) @ value, [B, H, Q, D]; each query sees at least one key.

    Without a mask each position sees itself and those before it. H is a multiple of K; adjacent query heads share a key
    head.
    """
    return _Attention.apply(query_BHQD, key_BKLD, value_BKLD, scale, mask_B1QL)  # type: ignore[no-any-return]


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None) -> Tensor:
        out, normaliser_BHQ = _forward(query, key, value, 0.0, mask is None, attn_mask=mask, scale=scale)
        ctx.save_for_backward(query, key, value, out, normaliser_BHQ)
        ctx.scale, ctx.mask = scale, mask
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, out, normaliser_BHQ = ctx.saved_tensors
        rows, heads, num_queries, _ = grad.shape
        size = max(CHUNK_WEIGHTS // (heads * num_queries * key.shape[2]), 1)
        chunks = [tensor.split(size) for tensor in (grad, query, key, value, out, normaliser_BHQ)]
        masks: Any = [None] * len(chunks[0]) if ctx.mask is None else ctx.mask.expand(rows, -1, -1, -1).split(size)
        parts = [_gradients(*chunk, scale=ctx.scale) for chunk in zip(*chunks, masks, strict=True)]
        return (*(torch.cat(part) for part in zip(*parts, strict=True)), None, None)


def _gradients(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    normaliser_BHQ: Tensor,
    mask: Tensor | None,
    *,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Those of query, key and value.

    What is subtracted from a product (the normaliser, the row sum) rides along in columns of its own: the difference is
    rounded to bfloat16 once, not each of its sides.
    """
    rows, heads, num_queries, size = query.shape
    num_keys = key.shape[2]
    matrices = rows * key.shape[1]
    row_sum_BHQ = torch.linalg.vecdot(grad.float(), out.float())
    ones = key.new_ones(()).expand(*key.shape[:-1], 2)
    query = _with_columns(query * scale, -normaliser_BHQ).view(matrices, -1, size + 2)
    grad = _with_columns(grad, -row_sum_BHQ).view(matrices, -1, size + 2)
    key, value = (torch.cat([tensor, ones], -1).view(matrices, num_keys, size + 2) for tensor in (key, value))
    weights = torch.bmm(query, key.mT)
    if mask is None:
        weights.exp_().view(-1, num_queries, num_keys).tril_()
    else:
        weights.view(rows, heads, num_queries, num_keys).add_(mask)
        weights.exp_()
    slopes = torch.bmm(grad, value.mT).mul_(weights)
    grad_query = torch.bmm(slopes, key)[..., :size].mul_(scale)
    grad_key = torch.bmm(slopes.mT, query)[..., :size]
    grad_value = torch.bmm(weights.mT, grad)[..., :size]
    shape = rows, -1, num_keys, size
    return grad_query.view(rows, heads, num_queries, size), grad_key.view(shape), grad_value.view(shape)


def _with_columns(tensor: Tensor, column: Tensor) -> Tensor:
    """The tensor with two columns more, whose sum is the given one in twice the digits of bfloat16."""
    high = column.to(tensor.dtype)
    low = (column - high).to(tensor.dtype)
    return torch.cat([tensor, high[..., None], low[..., None]], -1)
