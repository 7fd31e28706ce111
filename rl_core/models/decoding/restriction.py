"""Log-probabilities of the distribution that was sampled, where it is not the whole one: the
trainer's side of `token_choice`.

Axes: B rows, L positions, T response positions, N trained positions in row order, R positions of
one chunk, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from rl_core.kernels import AutogradContext, product_in_float32
from rl_core.models.decoding.token_choice import LEFT_OUT, PositionSupport, Support, penalised

SHARED_SEQUENCES = (
    "ranks that compute each sequence together (placement.sp_size) have the log-probabilities of "
    "the whole distribution alone: set placement.sp_size to 1, or leave out rollout.top_p, top_k, "
    "min_p, repetition_penalty and min_new_tokens"
)
CHUNK_TOKENS = 1024
"""Positions whose vocabulary logits exist at once, which bounds the memory of the log-softmax."""
CHUNK = 256
"""The same where tokens are left out, which takes more tensors [CHUNK, V]."""


@dataclass(frozen=True)
class Restriction:
    """Settings by which a batch was not drawn from the whole distribution."""

    repetition_penalty: float = 1.0
    supports_B: Sequence[Support] | None = None
    """Tokens that could be drawn at each response position; None if all could."""

    def at(self, input_ids_BL: Tensor, used_BL: Tensor, trained_BT: Tensor) -> Restricted:
        """Return the restriction of each trained position.

        Args: used_BL: true for tokens, false for padding. trained_BT: true for trained tokens.
        """
        support, seen = None, None
        if self.supports_B is not None:
            support = PositionSupport(self.supports_B, trained_BT.cpu().numpy())
        if self.repetition_penalty != 1:
            seen = _Seen(input_ids_BL, used_BL, trained_BT)
        return Restricted(self.repetition_penalty, seen, support)


class _Seen:
    """Tokens that occur in a row up to a position."""

    def __init__(self, input_ids_BL: Tensor, used_BL: Tensor, trained_BT: Tensor) -> None:
        num_positions = input_ids_BL.shape[1]
        self.row_N, column_N = trained_BT.nonzero(as_tuple=True)
        # The position before a token predicts it.
        self.position_N = column_N + num_positions - trained_BT.shape[1] - 1
        place_BL = torch.arange(num_positions, device=input_ids_BL.device).expand_as(input_ids_BL)
        self.first_BV = torch.full(
            (len(input_ids_BL), int(input_ids_BL.max()) + 1),
            num_positions,
            device=input_ids_BL.device,
        ).scatter_reduce_(1, input_ids_BL, place_BL.masked_fill(~used_BL, num_positions), "amin")

    def mask(self, start: int, stop: int, num_tokens: int) -> Tensor:
        """Return the tokens that occur before the prediction at positions start..stop-1, [R, V]."""
        part = slice(start, stop)
        seen_RV = self.first_BV[self.row_N[part]] <= self.position_N[part, None]
        # The largest id of the batch may lie below or beyond the tokens that may be drawn.
        missing = num_tokens - seen_RV.shape[1]
        return torch.nn.functional.pad(seen_RV, (0, missing))


@dataclass(frozen=True)
class Restricted:
    """The restriction of N trained positions; none by default."""

    repetition_penalty: float = 1.0
    seen: _Seen | None = None
    support: PositionSupport | None = None

    def scores(self, logits_RV: Tensor, temperature: float, start: int) -> Tensor:
        """Return the logits as they were sampled from, float32 [R, V]. Args: start: index of the
        first row among the N positions."""
        stop, num_tokens = start + len(logits_RV), logits_RV.shape[1]
        logits_RV = logits_RV.float()
        if self.seen is not None:
            seen_RV = self.seen.mask(start, stop, num_tokens)
            logits_RV = penalised(logits_RV, seen_RV, self.repetition_penalty)
        scores_RV = logits_RV / temperature
        if self.support is None:
            return scores_RV
        kept_RV = self.support.mask(start, stop, num_tokens, logits_RV.device)
        return scores_RV.masked_fill(~kept_RV, LEFT_OUT)

    def log_probs(
        self,
        logits: Callable[[Tensor], Tensor],
        hidden_NH: Tensor,
        targets_N: Tensor,
        *,
        temperature: float,
        with_entropy: bool,
        entropy_grad: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the log-probabilities of the targets, [N], and the entropies, [N] or None.

        Args: logits: function from hidden states [R, H] to the model's logits [R, V], with a
        gradient.
        """

        def chunk(hidden_RH: Tensor, targets_R: Tensor, start: int) -> tuple[Tensor, Tensor]:
            all_RV = self.scores(logits(hidden_RH), temperature, start).log_softmax(-1)
            log_probs_R = all_RV.gather(-1, targets_R[:, None])[:, 0]
            if not with_entropy:
                return log_probs_R, torch.zeros_like(log_probs_R)
            counted_RV = all_RV if entropy_grad else all_RV.detach()
            # p log p is 0 where p is; a product with -inf would be NaN.
            finite_RV = counted_RV.masked_fill(counted_RV == LEFT_OUT, 0.0)
            return log_probs_R, -(counted_RV.exp() * finite_RV).sum(-1)

        size = CHUNK_TOKENS if self.seen is None and self.support is None else CHUNK
        recompute = torch.is_grad_enabled() and len(targets_N) > size
        parts = []
        for start in range(0, max(1, len(targets_N)), size):
            given = hidden_NH[start : start + size], targets_N[start : start + size], start
            if recompute:
                parts.append(checkpoint(chunk, *given, use_reentrant=False))
            else:
                parts.append(chunk(*given))
        log_probs_N = torch.cat([log_probs for log_probs, _ in parts])
        return log_probs_N, torch.cat([one for _, one in parts]) if with_entropy else None


def projected(hidden_NH: Tensor, weight_VH: Tensor, scale: float) -> Tensor:
    """Return scale * hidden @ weight.T in float32, with a gradient whatever the format of the
    factors."""
    logits_NV: Tensor = _Projection.apply(hidden_NH.to(weight_VH.dtype), weight_VH)
    if scale == 1.0:
        return logits_NV
    return logits_NV * scale


class _ProjectionContext(AutogradContext, Protocol):
    pass


class _Projection(torch.autograd.Function):
    """Product of a head that is not rounded to the format of its factors, as in sampling."""

    @staticmethod
    def forward(ctx: _ProjectionContext, hidden_NH: Tensor, weight_VH: Tensor) -> Tensor:
        ctx.save_for_backward(hidden_NH, weight_VH)
        return product_in_float32(hidden_NH, weight_VH.t())

    @staticmethod
    @once_differentiable
    def backward(  # type: ignore[override]
        ctx: _ProjectionContext, grad_NV: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH = ctx.saved_tensors
        grad_NV = grad_NV.to(weight_VH.dtype)
        grad_hidden = grad_NV @ weight_VH if ctx.needs_input_grad[0] else None
        grad_weight = grad_NV.t() @ hidden_NH if ctx.needs_input_grad[1] else None
        return grad_hidden, grad_weight
