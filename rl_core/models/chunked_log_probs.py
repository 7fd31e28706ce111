"""Log-probabilities of given tokens without the table of all of them: [N, V] never exists, forward or backward.

The vocabulary is walked through in chunks: a running maximum m and sum s of exp(logit - m) give the normaliser, as in
online softmax (arXiv 1805.02867). What the backward pass needs is recomputed chunk by chunk, but for the first few
chunks, which are kept. With a frozen head (LoRA) nothing is: d log p(t) / d hidden = W_t - sum_v p_v W_v, and that mean
of the head's rows is summed on the way forward.

Axes: N positions, H hidden, V vocabulary, C words of one chunk.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

CHUNK_ELEMENTS = 2**21
"""Logits that exist at once, of all positions together."""
KEPT_BYTES = 2**28
"""Logits that a trained head keeps for the backward pass, of all positions together."""
MIN_WORDS = 256
"""Words of a chunk at least, however many positions there are: thinner products waste the processor."""


def linear_log_probs(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """log softmax(hidden @ weight.T / temperature) at the targets, [N], and the entropy, [N] or None; in float32.

    Logits are computed in the dtype of the weight, everything after in float32 (float64 stays). The entropy carries a
    gradient only with `entropy_grad`.
    """
    log_probs_N, entropy_N = _LinearLogProbs.apply(  # type: ignore[misc]
        hidden_NH.to(weight_VH.dtype), weight_VH, targets_N, 1.0 / temperature, with_entropy, entropy_grad
    )
    return log_probs_N, entropy_N if with_entropy else None


def is_plain_head(head: nn.Module) -> bool:
    """Whether a head's weight alone says what it computes: no bias, adapter, hook, or tensor-parallel cut."""
    hooked = head._forward_hooks or head._forward_pre_hooks or "forward" in vars(head)
    return type(head) is nn.Linear and head.bias is None and not hooked and not isinstance(head.weight, DTensor)


class _LinearLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        targets_N: Tensor,
        scale: float,
        with_entropy: bool,
        entropy_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        # With a trained head or an entropy's gradient the backward pass meets every logit anyway.
        gather_mean = ctx.needs_input_grad[0] and not ctx.needs_input_grad[1] and not entropy_grad
        keeps = any(ctx.needs_input_grad[:2]) and not gather_mean
        num_kept = KEPT_BYTES // max(len(hidden_NH) * weight_VH.element_size(), 1) if keeps else 0
        sums = _Sums(hidden_NH, gather_mean=gather_mean, with_entropy=with_entropy)
        ctx.kept = {}
        for start, words_CH, logits_NC in _chunks(hidden_NH, weight_VH, scale, ctx.kept, num_kept):
            sums.add(logits_NC, words_CH, targets_N - start)
        normaliser_N = sums.normaliser()
        entropy_N = sums.entropy() if with_entropy else torch.zeros_like(normaliser_N)
        ctx.scale, ctx.entropy_grad, ctx.gather_mean = scale, entropy_grad, gather_mean
        if gather_mean:
            pull_NH = weight_VH[targets_N].to(sums.total_N.dtype) - sums.mean_NH / sums.total_N[:, None]
            ctx.save_for_backward((scale * pull_NH).to(hidden_NH.dtype))
        else:
            ctx.save_for_backward(hidden_NH, weight_VH, targets_N, normaliser_N, entropy_N)
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy_N)
        return sums.target_N - normaliser_N, entropy_N

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor, grad_entropy_N: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if ctx.gather_mean:
            (pull_NH,) = ctx.saved_tensors
            return (grad_N[:, None] * pull_NH).to(pull_NH.dtype), None, None, None, None, None
        hidden_NH, weight_VH, targets_N, normaliser_N, entropy_N = ctx.saved_tensors
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden_NH = torch.zeros_like(hidden_NH, dtype=normaliser_N.dtype) if wants_hidden else None
        grad_weight_VH = torch.empty_like(weight_VH) if wants_weight else None
        rows_N = torch.arange(len(targets_N), device=targets_N.device)
        # What all of a row's slopes share is left to the products with [N, H], which are smaller than [N, C].
        shared_N1 = -ctx.scale * (torch.ones_like(grad_N) if ctx.entropy_grad else grad_N)[:, None]
        pulling_NH = (shared_N1 * hidden_NH).to(hidden_NH.dtype)
        for start, words_CH, logits_NC in _chunks(hidden_NH, weight_VH, ctx.scale, ctx.kept):
            slope_NC = logits_NC.sub_(normaliser_N[:, None])
            if ctx.entropy_grad:
                pull_NC = (slope_NC + entropy_N[:, None]).mul_(grad_entropy_N[:, None]).add_(grad_N[:, None])
                slope_NC.exp_().mul_(pull_NC)
            else:
                slope_NC.exp_()
            here_N = (targets_N >= start) & (targets_N < start + len(words_CH))
            slope_NC[rows_N[here_N], targets_N[here_N] - start] -= grad_N[here_N] if ctx.entropy_grad else 1.0
            slope_NC = slope_NC.to(hidden_NH.dtype)
            if grad_hidden_NH is not None:
                _add_product(grad_hidden_NH, slope_NC, words_CH)
            if grad_weight_VH is not None:
                torch.mm(slope_NC.t(), pulling_NH, out=grad_weight_VH[start : start + len(words_CH)])
        grad_hidden_NH = None if grad_hidden_NH is None else (shared_N1 * grad_hidden_NH).to(hidden_NH.dtype)
        return grad_hidden_NH, grad_weight_VH, None, None, None, None


class _Sums:
    """What is summed over the vocabulary, relative to a running maximum; [N] or [N, H]."""

    def __init__(self, hidden_NH: Tensor, *, gather_mean: bool, with_entropy: bool) -> None:
        dtype = torch.promote_types(hidden_NH.dtype, torch.float32)
        self.highest_N = hidden_NH.new_full((len(hidden_NH),), float("-inf"), dtype=dtype)
        self.total_N = torch.zeros_like(self.highest_N)
        self.target_N = torch.zeros_like(self.highest_N)
        self.weighted_N = torch.zeros_like(self.highest_N) if with_entropy else None
        self.mean_NH = torch.zeros_like(hidden_NH, dtype=dtype) if gather_mean else torch.empty(0)
        self.gather_mean = gather_mean

    def add(self, logits_NC: Tensor, words_CH: Tensor, places_N: Tensor) -> None:
        """One chunk, whose logits are overwritten. Args: places_N: the targets' columns; outside 0..C-1 they are
        another chunk's.
        """
        here_N = (places_N >= 0) & (places_N < logits_NC.shape[1])
        column_N1 = places_N.clamp(0, logits_NC.shape[1] - 1)[:, None]
        self.target_N = logits_NC.gather(1, column_N1)[:, 0].where(here_N, self.target_N)
        highest_N = self.highest_N.maximum(logits_NC.amax(1))
        shrink_N = (self.highest_N - highest_N).exp()
        if self.weighted_N is None:
            parts_NC = logits_NC.sub_(highest_N[:, None]).exp_()
        else:
            parts_NC = (logits_NC - highest_N[:, None]).exp_()
            self.weighted_N = self.weighted_N * shrink_N + logits_NC.mul_(parts_NC).sum(1)
        self.highest_N = highest_N
        self.total_N = self.total_N * shrink_N + parts_NC.sum(1)
        if self.gather_mean:
            _add_product(self.mean_NH.mul_(shrink_N[:, None]), parts_NC.to(words_CH.dtype), words_CH)

    def normaliser(self) -> Tensor:
        """log sum exp of all logits."""
        return self.highest_N + self.total_N.log()

    def entropy(self) -> Tensor:
        """The normaliser less the mean logit."""
        assert self.weighted_N is not None
        return self.normaliser() - self.weighted_N / self.total_N


def _add_product(total_NH: Tensor, left_NC: Tensor, words_CH: Tensor) -> None:
    """Add left @ words to the total, whose dtype may be wider."""
    if total_NH.dtype == words_CH.dtype:
        total_NH.addmm_(left_NC, words_CH)
    else:
        total_NH += left_NC @ words_CH


def _chunks(
    hidden_NH: Tensor, weight_VH: Tensor, scale: float, kept: dict[int, Tensor], num_kept: int = 0
) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Chunk by chunk: the number of the first word, the head's rows, and the logits, [N, C].

    Logits are in float32 (float64 stays) and may be overwritten; the next chunk's take their place.

    Args: kept: unscaled logits by first word, in the dtype of the product; those that are there are used up instead of
    computed. num_kept: keep those of the first so many words there.
    """
    num_rows, num_words = len(hidden_NH), len(weight_VH)
    size = min(max(CHUNK_ELEMENTS // max(num_rows, 1), MIN_WORDS), num_words)
    room = hidden_NH.new_empty(num_rows * size)
    wide_room = room.new_empty(room.shape, dtype=torch.promote_types(room.dtype, torch.float32))
    for start in range(0, num_words, size):
        words_CH = weight_VH[start : start + size]
        shape = num_rows, len(words_CH)
        logits_NC = kept.pop(start, None)
        if logits_NC is None:
            keep = start + len(words_CH) <= num_kept
            logits_NC = hidden_NH.new_empty(shape) if keep else room[: math.prod(shape)].view(shape)
            torch.mm(hidden_NH, words_CH.t(), out=logits_NC)
            if keep:
                kept[start] = logits_NC
        wide_NC = wide_room[: math.prod(shape)].view(shape).copy_(logits_NC)
        yield start, words_CH, wide_NC if scale == 1.0 else wide_NC.mul_(scale)
