"""Causal attention in bfloat16 on CPUs with bfloat16 instructions, in large batched products.

torch splits short rows into products too small for the processor, and allocates memory for each of
them; for rows of a hundred tokens it takes three times as long as batched products that fill the
whole matrix of attention weights (`make bench-attention`). Short rows save that matrix for the
backward pass. Longer rows use torch's forward, and recompute the matrix from the log-sum-exp of
torch's softmax, as in FlashAttention (arXiv 2205.14135, algorithm 4). Rows with more than
`MAX_WEIGHTS` use torch for both passes.

A product in bfloat16 rounds its result, and scores are large exactly where attention weights are.
So the value that is subtracted from a query's scores before the exponential is part of the product,
as additional columns: the rounded result is then near zero where the weights are large.

Axes: B rows, H query heads, K key heads, Q queries, L keys, D head size, M = B * K matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rl_core.kernels.autograd_context import AutogradContext
from rl_core.kernels.float32_matmul import multiplies_in_bfloat16

MAX_WEIGHTS = 2**24
"""Largest number of attention weights per row, over all heads, for which this attention is used: 32
MiB."""
KEPT_LENGTH = 128
"""Largest number of keys for which weights are saved: up to it they take no more memory than the
states."""
CHUNK_WEIGHTS = 2**19
"""Number of attention weights computed at a time; at least those of one row."""
_torchs_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def attends_in_bfloat16(
    query_BHQD: Tensor,
    key_BKLD: Tensor,
    *,
    is_causal: bool,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **_: object,
) -> bool:
    """Return True if `attend_in_bfloat16` is correct and fast for these arguments, which
    transformers passes to an attention function in addition to a mask."""
    is_plain = is_causal and not dropout and scaling is not None and position_bias is None
    is_small = query_BHQD[0, ..., 0].numel() * key_BKLD.shape[2] <= MAX_WEIGHTS
    return is_plain and is_small and multiplies_in_bfloat16(query_BHQD.device, query_BHQD.dtype)


def attend_in_bfloat16(
    query_BHQD: Tensor,
    key_BKLD: Tensor,
    value_BKLD: Tensor,
    scale: float,
    mask_B1QL: Tensor | None = None,
) -> Tensor:
    """Return softmax(scale * query @ key.T + mask) @ value, [B, H, Q, D]; each query must see at
    least one key.

    The mask is in float32; without one, each position sees itself and the positions before it. H is
    a multiple of K; adjacent query heads share a key head.
    """
    way = _Kept if key_BKLD.shape[2] <= KEPT_LENGTH else _MadeAgain
    return way.apply(query_BHQD, key_BKLD, value_BKLD, scale, mask_B1QL)


class _KeptContext(AutogradContext, Protocol):
    scale: float
    mask: Tensor


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _KeptContext,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        mask: Tensor | None,
    ) -> Tensor:
        mask = _causal_mask(query, key) if mask is None else mask
        chunks = _chunks(mask, query, key, value)
        weights = [_weights(query, key, mask, scale) for query, key, _, mask in chunks]
        seen = [
            torch.bmm(one, _matrices(value, key)).view(query.shape)
            for one, (query, key, value, _) in zip(weights, chunks, strict=True)
        ]
        ctx.save_for_backward(query, key, value, *weights)
        ctx.scale, ctx.mask = scale, mask
        return torch.cat(seen)

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: _KeptContext, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, key, value, *weights = ctx.saved_tensors
        pairs = zip(_chunks(ctx.mask, query, key, value, grad), weights, strict=True)
        parts = []
        for (*states, _), one in pairs:
            parts.append(_gradients(*states, weights=one, scale=ctx.scale))
        return (*(torch.cat(part) for part in zip(*parts, strict=True)), None, None)


class _MadeAgainContext(AutogradContext, Protocol):
    scale: float
    mask: Tensor | None


class _MadeAgain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _MadeAgainContext,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        mask: Tensor | None,
    ) -> Tensor:
        seen, normaliser_BHQ = _torchs_forward(
            query, key, value, 0.0, mask is None, attn_mask=mask, scale=scale
        )
        ctx.save_for_backward(query, key, value, normaliser_BHQ)
        ctx.scale, ctx.mask = scale, mask
        return seen

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: _MadeAgainContext, grad: Tensor
    ) -> tuple[Tensor | None, ...]:
        query, key, value, normaliser_BHQ = ctx.saved_tensors
        hides = (_causal_mask(query, key) if ctx.mask is None else ctx.mask).to(query.dtype)
        parts = []
        for *states, normaliser, mask in _chunks(hides, query, key, value, grad, normaliser_BHQ):
            weights = _weights_again(states[0], states[1], normaliser, mask, ctx.scale)
            parts.append(_gradients(*states, weights=weights, scale=ctx.scale))
        return (*(torch.cat(part) for part in zip(*parts, strict=True)), None, None)


def _causal_mask(query: Tensor, key: Tensor) -> Tensor:
    """Return the causal mask [1, 1, Q, L]: -inf for the keys after each query's position, else
    0."""
    return torch.full((1, 1, query.shape[2], key.shape[2]), float("-inf")).triu_(1)


def _chunks(mask: Tensor, query: Tensor, key: Tensor, *others: Tensor) -> list[Sequence[Tensor]]:
    """Split rows into chunks that are computed together: query, key, others, mask."""
    rows, heads, num_queries, _ = query.shape
    size = max(CHUNK_WEIGHTS // (heads * num_queries * key.shape[2]), 1)
    tensors = query, key, *others, mask.expand(rows, -1, -1, -1)
    return list(zip(*(tensor.split(size) for tensor in tensors), strict=True))


def _matrices(states: Tensor, key: Tensor) -> Tensor:
    """Reshape states to [M, positions, D]: query heads with the same key head follow one
    another."""
    return states.reshape(key.shape[0] * key.shape[1], -1, states.shape[-1])


def _weights(query: Tensor, key: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Return the attention weights [M, H / K * Q, L], rounded once."""
    # The maximum over all keys is good enough, even if the mask hides some: the softmax subtracts
    # its own maximum again. In bfloat16, torch computes a maximum across rows eight times as fast
    # as within one.
    largest = torch.bmm(_matrices(key, key), _matrices(query, key).mT).amax(-2)
    scores = _less(query, key, [largest.view(query.shape[:3])])
    weights = torch.add(mask, scores.view(*query.shape[:3], -1), alpha=scale).softmax(-1)
    return weights.to(query.dtype).view(scores.shape)


def _weights_again(
    query: Tensor, key: Tensor, normaliser_BHQ: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """Recompute `_weights` from the log-sum-exp of each query's scores."""
    high = normaliser_BHQ.to(query.dtype)
    low = (normaliser_BHQ - high).to(query.dtype)
    logs = _less(query * scale, key, [high, low])
    logs.view(*query.shape[:3], -1).add_(mask)
    return logs.exp_()


def _less(query: Tensor, key: Tensor, taken: list[Tensor]) -> Tensor:
    """Return query @ key.T minus the sum of each query's `taken` values, [M, H / K * Q, L], rounded
    once."""
    queries = torch.cat([query, torch.stack(taken, -1)], -1)
    keys = torch.cat([key, key.new_full((), -1.0).expand(*key.shape[:3], len(taken))], -1)
    return torch.bmm(_matrices(queries, key), _matrices(keys, key).mT)


def _gradients(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, *, weights: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value."""
    queries, keys, values, grads = (_matrices(states, key) for states in (query, key, value, grad))
    slopes = torch.bmm(grads, values.mT)
    slopes = torch.ops.aten._softmax_backward_data(slopes, weights, -1, weights.dtype)
    grad_query, grad_key = (
        torch.bmm(slopes, keys).mul_(scale),
        torch.bmm(slopes.mT, queries).mul_(scale),
    )
    return (
        grad_query.view(query.shape),
        grad_key.view(key.shape),
        torch.bmm(weights.mT, grads).view(key.shape),
    )
