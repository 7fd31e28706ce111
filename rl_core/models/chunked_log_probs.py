"""Log-probabilities of given tokens without the logits of all tokens: [N, V] never exists, forward
or backward.

The vocabulary is processed in chunks. Each gives the softmax over its own words and its normaliser;
together they give the normaliser of all, as in online softmax (arXiv 1805.02867). The backward pass
recomputes the softmax, except for the first few chunks, which are kept. With a frozen head (LoRA)
it needs none: d log p(t) / d hidden = W_t - sum_v p_v W_v, and that mean of the head's rows is
summed in the forward pass.

Axes: N positions, H hidden, V vocabulary, C words of one chunk.
"""

from __future__ import annotations

import math
from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rl_core.kernels import AutogradContext, multiplied_as_bfloat16, product_in_float32

CHUNK_ELEMENTS, CHUNK_ELEMENTS_ON_GPU = 2**21, 2**26
"""Number of logits that exist at once, over all positions: the size of a CPU's caches, and enough
to keep a GPU busy."""
KEPT_BYTES = 2**28
"""Bytes that a trained head keeps for the backward pass, over all positions."""
MIN_WORDS = 256
"""Least number of words in a chunk, whatever the number of positions: thinner products are
inefficient."""
LEAST_LOG = -60.0
"""Lower bound on the logarithm of a chunk's share of the probability, so that its inverse is a
number."""


def linear_log_probs(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    targets_N: Tensor,
    *,
    temperature: float = 1.0,
    with_entropy: bool = False,
    entropy_grad: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return log softmax(hidden @ weight.T / temperature) at the targets, [N], and the entropy, [N]
    or None; in float32.

    Factors have the dtype of the weight; logits are accumulated in float32 and never rounded, and
    so is everything after (float64 stays). The entropy has a gradient only with `entropy_grad`.
    """
    log_probs_N, entropy_N = _LinearLogProbs.apply(  # type: ignore[misc]
        hidden_NH.to(weight_VH.dtype),
        weight_VH,
        targets_N,
        1.0 / temperature,
        with_entropy,
        entropy_grad,
    )
    return log_probs_N, entropy_N if with_entropy else None


def is_plain_head(head: nn.Module) -> TypeGuard[nn.Linear]:
    """Return True if a head's result only depends on its weight: no bias, adapter, hook, or
    tensor-parallel cut."""
    # torch can add hooks but not list them; this can go when it can.
    hooked = head._forward_hooks or head._forward_pre_hooks or "forward" in vars(head)
    return (
        type(head) is nn.Linear
        and head.bias is None
        and not hooked
        and not isinstance(head.weight, DTensor)
    )


class _Context(AutogradContext, Protocol):
    scale: float
    entropy_grad: bool
    gather_mean: bool
    kept: dict[int, tuple[Tensor, Tensor]]


class _LinearLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        targets_N: Tensor,
        scale: float,
        with_entropy: bool,
        entropy_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        # With a trained head or an entropy's gradient the backward pass meets every word anyway.
        gather_mean = ctx.needs_input_grad[0] and not ctx.needs_input_grad[1] and not entropy_grad
        keeps = any(ctx.needs_input_grad[:2]) and not gather_mean and not entropy_grad
        num_kept = KEPT_BYTES // max(len(hidden_NH) * weight_VH.element_size(), 1) if keeps else 0
        vocabulary = _Vocabulary(hidden_NH, weight_VH, scale)
        sums = _Sums(hidden_NH, gather_mean=gather_mean, with_entropy=with_entropy)
        kept = {}
        for start in vocabulary.starts:
            words_CH, logits_NC = vocabulary.words(start), vocabulary.logits(start)
            sums.add_target(logits_NC, targets_N - start)
            shares_NC, own_N = vocabulary.softmax(logits_NC)
            if start + len(words_CH) <= num_kept:
                kept[start] = shares_NC.to(hidden_NH.dtype, copy=True), own_N
            sums.add(logits_NC, shares_NC, own_N, words_CH)
        normaliser_N, entropy_N = sums.normaliser_N, sums.entropy()
        log_probs_N = sums.target_N - normaliser_N
        ctx.scale, ctx.entropy_grad, ctx.gather_mean, ctx.kept = (
            scale,
            entropy_grad,
            gather_mean,
            kept,
        )
        if sums.mean_NH is not None:
            pull_NH = weight_VH[targets_N].to(normaliser_N.dtype) - sums.mean_NH
            ctx.save_for_backward((scale * pull_NH).to(hidden_NH.dtype))
        else:
            ctx.save_for_backward(
                hidden_NH, weight_VH, targets_N, normaliser_N, log_probs_N, entropy_N
            )
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy_N)
        return log_probs_N, entropy_N

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: _Context, grad_N: Tensor, grad_entropy_N: Tensor
    ) -> tuple[Tensor | None, ...]:
        if ctx.gather_mean:
            (pull_NH,) = ctx.saved_tensors
            return (grad_N[:, None] * pull_NH).to(pull_NH.dtype), None, None, None, None, None
        hidden_NH, weight_VH = ctx.saved_tensors[:2]
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden_NH = torch.zeros_like(hidden_NH, dtype=grad_N.dtype) if wants_hidden else None
        grad_weight_VH = torch.empty_like(weight_VH) if wants_weight else None
        vocabulary = _Vocabulary(hidden_NH, weight_VH, ctx.scale)
        for start in vocabulary.starts:
            words_CH = vocabulary.words(start)
            if ctx.entropy_grad:
                slopes_NC, shared_N1 = _slopes_with_entropy(
                    ctx, vocabulary, start, grad_N, grad_entropy_N
                )
            else:
                slopes_NC, shared_N1 = _slopes(ctx, vocabulary, start, grad_N)
            slopes_NC = slopes_NC.to(hidden_NH.dtype)
            if grad_hidden_NH is not None:
                grad_hidden_NH.addcmul_(shared_N1, (slopes_NC @ words_CH).to(grad_hidden_NH.dtype))
            if grad_weight_VH is not None:
                pulling_NH = (shared_N1 * hidden_NH).to(hidden_NH.dtype)
                torch.mm(
                    slopes_NC.t(), pulling_NH, out=grad_weight_VH[start : start + len(words_CH)]
                )
        grad_hidden_NH = None if grad_hidden_NH is None else grad_hidden_NH.to(hidden_NH.dtype)
        return grad_hidden_NH, grad_weight_VH, None, None, None, None


def _slopes(
    ctx: _Context, vocabulary: _Vocabulary, start: int, grad_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a chunk's logits: [N, C], and a factor of each row, [N, 1].

    Factors that a row has in common are applied in the products with [N, H], which are smaller than
    [N, C].
    """
    _, _, targets_N, normaliser_N, log_probs_N, _ = ctx.saved_tensors
    shares_NC, own_N = ctx.kept.pop(start, None) or vocabulary.softmax(vocabulary.logits(start))
    share_N = (own_N - normaliser_N).clamp_(min=LEAST_LOG).exp_()
    rows_R, columns_R = _places(targets_N, start, shares_NC.shape[1])
    # p - 1 from the rounded p would be inaccurate for targets with a probability near 1.
    shares_NC[rows_R, columns_R] = (log_probs_N.expm1() / share_N)[rows_R].to(shares_NC.dtype)
    return shares_NC, (-ctx.scale * grad_N * share_N)[:, None]


def _slopes_with_entropy(
    ctx: _Context, vocabulary: _Vocabulary, start: int, grad_N: Tensor, grad_entropy_N: Tensor
) -> tuple[Tensor, Tensor]:
    """Return `_slopes` if the entropy has a gradient, too."""
    _, _, targets_N, normaliser_N, _, entropy_N = ctx.saved_tensors
    logs_NC = vocabulary.logits(start).sub_(normaliser_N[:, None])
    pull_NC = (logs_NC + entropy_N[:, None]).mul_(grad_entropy_N[:, None]).add_(grad_N[:, None])
    slopes_NC = logs_NC.exp_().mul_(pull_NC)
    rows_R, columns_R = _places(targets_N, start, slopes_NC.shape[1])
    slopes_NC[rows_R, columns_R] -= grad_N[rows_R]
    return slopes_NC, grad_N.new_full((len(grad_N), 1), -ctx.scale)


def _places(targets_N: Tensor, start: int, num_words: int) -> tuple[Tensor, Tensor]:
    """Return the rows whose target is in a chunk, and its columns there."""
    rows_R = ((targets_N >= start) & (targets_N < start + num_words)).nonzero()[:, 0]
    return rows_R, targets_N[rows_R] - start


class _Sums:
    """Sums over the vocabulary, [N] or [N, H]."""

    def __init__(self, hidden_NH: Tensor, *, gather_mean: bool, with_entropy: bool) -> None:
        dtype = torch.promote_types(hidden_NH.dtype, torch.float32)
        self.normaliser_N = hidden_NH.new_full((len(hidden_NH),), float("-inf"), dtype=dtype)
        """Logarithm of the sum of all exponentials."""
        self.target_N = torch.zeros_like(self.normaliser_N)
        """Logits of the targets."""
        self.mean_logit_N = torch.zeros_like(self.normaliser_N) if with_entropy else None
        self.mean_NH = torch.zeros_like(hidden_NH, dtype=dtype) if gather_mean else None
        """Probability-weighted mean of the head's rows."""

    def add_target(self, logits_NC: Tensor, places_N: Tensor) -> None:
        """Add the logits of targets in this chunk.

        Args: places_N: the targets' columns; outside 0..C-1 they belong to another chunk.
        """
        here_N = (places_N >= 0) & (places_N < logits_NC.shape[1])
        column_N1 = places_N.clamp(0, logits_NC.shape[1] - 1)[:, None]
        self.target_N = logits_NC.gather(1, column_N1)[:, 0].where(here_N, self.target_N)

    def add(self, logits_NC: Tensor, shares_NC: Tensor, own_N: Tensor, words_CH: Tensor) -> None:
        """Add one chunk, whose logits are overwritten.

        Args: shares_NC, own_N: its softmax and normaliser.
        """
        normaliser_N = torch.logaddexp(self.normaliser_N, own_N)
        share_N = (own_N - normaliser_N).exp_()
        self.normaliser_N = normaliser_N
        if self.mean_logit_N is not None:
            self.mean_logit_N.lerp_(logits_NC.mul_(shares_NC).sum(1), share_N)
        if self.mean_NH is not None:
            mean_NH = shares_NC.to(words_CH.dtype) @ words_CH
            self.mean_NH.lerp_(mean_NH.to(self.mean_NH.dtype), share_N[:, None])

    def entropy(self) -> Tensor:
        """Return the normaliser minus the mean logit; 0 if the mean was not requested."""
        if self.mean_logit_N is None:
            return torch.zeros_like(self.normaliser_N)
        return self.normaliser_N - self.mean_logit_N


class _Vocabulary:
    """Chunks of the vocabulary, each in the memory of the one before, in float32 (float64
    stays)."""

    def __init__(self, hidden_NH: Tensor, weight_VH: Tensor, scale: float) -> None:
        num_rows, num_words = len(hidden_NH), len(weight_VH)
        self.hidden_NH, self.weight_VH, self.scale = hidden_NH, weight_VH, scale
        at_once = CHUNK_ELEMENTS if hidden_NH.is_cpu else CHUNK_ELEMENTS_ON_GPU
        self.size = min(max(at_once // max(num_rows, 1), MIN_WORDS), num_words)
        self.starts = range(0, num_words, self.size)
        """Index of each chunk's first word."""
        wide = torch.promote_types(hidden_NH.dtype, torch.float32)
        self._rooms = [hidden_NH.new_empty(num_rows * self.size, dtype=wide) for _ in range(2)]
        # On a CPU both factors must have the format of the product; the states are converted once,
        # since they are the same for every chunk.
        self._states_NH = hidden_NH.to(wide) if hidden_NH.is_cpu else hidden_NH

    def words(self, start: int) -> Tensor:
        """Return the head's rows, [C, H]."""
        return self.weight_VH[start : start + self.size]

    def logits(self, start: int) -> Tensor:
        """Return the logits, [N, C], which may be overwritten."""
        words_CH = self.words(start)
        logits_NC = self._cut(len(words_CH))[0]
        with multiplied_as_bfloat16(self.hidden_NH.dtype):
            product_in_float32(
                self._states_NH, words_CH.to(self._states_NH.dtype).t(), out=logits_NC
            )
        if self.scale == 1.0:
            return logits_NC
        return logits_NC.mul_(self.scale)

    def softmax(self, logits_NC: Tensor) -> tuple[Tensor, Tensor]:
        """Return the softmax, [N, C], which may be overwritten, and the logarithm of its
        normaliser, [N]."""
        shares_NC = self._cut(logits_NC.shape[1])[1]
        torch.softmax(logits_NC, 1, out=shares_NC)
        # The word with the largest logit gives the normaliser with the least rounding.
        return shares_NC, logits_NC.amax(1) - shares_NC.amax(1).log_()

    def _cut(self, num_words: int) -> list[Tensor]:
        shape = len(self.hidden_NH), num_words
        return [room[: math.prod(shape)].view(shape) for room in self._rooms]
