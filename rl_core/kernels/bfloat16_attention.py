"""Causal attention in bfloat16 on a CPU that multiplies in it, in whole products.

torch cuts short rows into products too small for the processor, and allocates memory for each of
them; for rows of a hundred tokens it takes three times as long as batched products that fill a
whole matrix of attention weights (`make bench-attention`). Short rows keep that matrix for the
backward pass. Longer ones are torch's forward, and make it again from what torch's softmax was
divided by, as in FlashAttention (arXiv 2205.14135, algorithm 4); rows with more than `MAX_WEIGHTS`
are torch's both ways.

A product in bfloat16 rounds its result, and scores are large where they matter. So what is
subtracted from a query's scores before the exponential rides along in columns of its own: what is
rounded then is near zero where the weights are large.

Axes: B rows, H query heads, K key heads, Q queries, L keys, D head size, M = B * K matrices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rl_core.kernels.float32_matmul import multiplies_in_bfloat16

MAX_WEIGHTS = 2**24
"""Attention weights of a row, all heads together, up to which they are worked on at once: 32
MiB."""
KEPT_LENGTH = 128
"""Positions of a row, up to which its weights take no more memory than its states do."""
CHUNK_WEIGHTS = 2**19
"""Attention weights that are worked on at once; those of one row at least."""
_torchs_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def attends_in_bfloat16(
    query_BHQD: Tensor,
    key_BKLD: Tensor,
    *,
    is_causal: bool,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> bool:
    """Whether `attend_in_bfloat16` is right and quick, by what transformers passes to an attention
    besides a mask."""
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
    """softmax(scale * query @ key.T + mask) @ value, [B, H, Q, D]; each query sees at least one
    key.

    Without a mask, which is in float32, each position sees itself and those before it. H is a
    multiple of K; adjacent query heads share a key head.
    """
    way = _Kept if key_BKLD.shape[2] <= KEPT_LENGTH else _MadeAgain
    return way.apply(query_BHQD, key_BKLD, value_BKLD, scale, mask_B1QL)  # type: ignore[return-value]


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None
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
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, *weights = ctx.saved_tensors
        pairs = zip(_chunks(ctx.mask, query, key, value, grad), weights, strict=True)
        parts = [_gradients(*states, weights=one, scale=ctx.scale) for (*states, _), one in pairs]
        return (*(torch.cat(part) for part in zip(*parts, strict=True)), None, None)


class _MadeAgain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None
    ) -> Tensor:
        seen, normaliser_BHQ = _torchs_forward(
            query, key, value, 0.0, mask is None, attn_mask=mask, scale=scale
        )
        ctx.save_for_backward(query, key, value, normaliser_BHQ)
        ctx.scale, ctx.mask = scale, mask
        return seen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        query, key, value, normaliser_BHQ = ctx.saved_tensors
        hides = (_causal_mask(query, key) if ctx.mask is None else ctx.mask).to(query.dtype)
        parts = []
        for *states, normaliser, mask in _chunks(hides, query, key, value, grad, normaliser_BHQ):
            weights = _weights_again(states[0], states[1], normaliser, mask, ctx.scale)
            parts.append(_gradients(*states, weights=weights, scale=ctx.scale))
        return (*(torch.cat(part) for part in zip(*parts, strict=True)), None, None)


def _causal_mask(query: Tensor, key: Tensor) -> Tensor:
    """What hides from each position those behind it, [1, 1, Q, L]."""
    return torch.full((1, 1, query.shape[2], key.shape[2]), float("-inf")).triu_(1)


def _chunks(mask: Tensor, query: Tensor, key: Tensor, *others: Tensor) -> list[Sequence[Tensor]]:
    """Rows that are worked on together: query, key, others, mask."""
    rows, heads, num_queries, _ = query.shape
    size = max(CHUNK_WEIGHTS // (heads * num_queries * key.shape[2]), 1)
    tensors = query, key, *others, mask.expand(rows, -1, -1, -1)
    return list(zip(*(tensor.split(size) for tensor in tensors), strict=True))


def _matrices(states: Tensor, key: Tensor) -> Tensor:
    """[M, positions, D]: those of query heads that share a key head one behind the other."""
    return states.reshape(key.shape[0] * key.shape[1], -1, states.shape[-1])


def _weights(query: Tensor, key: Tensor, mask: Tensor, scale: float) -> Tensor:
    """[M, H / K * Q, L], rounded once."""
    # The largest of all scores will do, those behind the mask included: the softmax subtracts once
    # more. In bfloat16 torch finds it among rows eight times as fast as within one.
    largest = torch.bmm(_matrices(key, key), _matrices(query, key).mT).amax(-2)
    scores = _less(query, key, [largest.view(query.shape[:3])])
    weights = torch.add(mask, scores.view(*query.shape[:3], -1), alpha=scale).softmax(-1)
    return weights.to(query.dtype).view(scores.shape)


def _weights_again(
    query: Tensor, key: Tensor, normaliser_BHQ: Tensor, mask: Tensor, scale: float
) -> Tensor:
    """`_weights` of rows for which the logarithm of the sum of all exponentials is known."""
    high = normaliser_BHQ.to(query.dtype)
    low = (normaliser_BHQ - high).to(query.dtype)
    logs = _less(query * scale, key, [high, low])
    logs.view(*query.shape[:3], -1).add_(mask)
    return logs.exp_()


def _less(query: Tensor, key: Tensor, taken: list[Tensor]) -> Tensor:
    """query @ key.T less the sum of what is taken from each query's, [M, H / K * Q, L], rounded
    once."""
    queries = torch.cat([query, torch.stack(taken, -1)], -1)
    keys = torch.cat([key, key.new_full((), -1.0).expand(*key.shape[:3], len(taken))], -1)
    return torch.bmm(_matrices(queries, key), _matrices(keys, key).mT)


def _gradients(
    query: Tensor, key: Tensor, value: Tensor, grad: Tensor, *, weights: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Those of query, key and value."""
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
