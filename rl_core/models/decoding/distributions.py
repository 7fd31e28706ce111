"""Whole distributions over the vocabulary, which a policy's forward pass hands to a reader: a
teacher's are kept, a student's are compared with them.

Axes: N trained positions in row order, R positions of one chunk, V vocabulary, K kept outcomes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 256
"""Positions whose logits of the whole vocabulary exist at once, several times over."""
LEAST_REST = 1e-6
"""Least probability of the tokens that are not kept: the difference of 1 and a float32 below 1."""


class DistributionReader(Protocol):
    """Reader of the distributions of one forward pass."""

    def read(
        self,
        logits: Callable[[Tensor], Tensor],
        hidden_NH: Tensor,
        targets_N: Tensor,
        *,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the targets, [N], and the reader's own number, [N].

        Args: logits: function from hidden states [R, H] to the model's logits [R, V].
        """
        ...


@dataclass
class Distribution:
    """Log-probabilities of K outcomes at N positions."""

    log_probs_NK: Tensor
    ids_NK: Tensor | None = None
    """Tokens of the outcomes, without the last one, which is all other tokens together; None if the
    outcomes are the whole vocabulary."""

    def put(self, places_N: Tensor, other: Distribution) -> Distribution:
        """Return the distributions with those at `places_N` (bool) taken from another one's."""
        ids_NK = self.ids_NK
        if ids_NK is not None and other.ids_NK is not None:
            ids_NK = ids_NK.masked_scatter(places_N[:, None], other.ids_NK)
        log_probs_NK = self.log_probs_NK.masked_scatter(places_N[:, None], other.log_probs_NK)
        return Distribution(log_probs_NK, ids_NK)


class KeptDistribution:
    """Reader of a teacher: keeps its distributions, and answers with their entropies.

    Args: top_k: number of likeliest tokens that are kept; None keeps all. num_words: size of the
    student's vocabulary; a teacher's head may be padded to more, which no token stands for.
    """

    def __init__(self, top_k: int | None, num_words: int) -> None:
        self.top_k, self.num_words = top_k, num_words
        self.kept: Distribution | None = None

    @torch.no_grad()
    def read(
        self,
        logits: Callable[[Tensor], Tensor],
        hidden_NH: Tensor,
        targets_N: Tensor,
        *,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the targets and the entropies, [N] each."""
        found = []
        for start in range(0, max(1, len(targets_N)), CHUNK):
            part = slice(start, start + CHUNK)
            logits_RV = logits(hidden_NH[part])[:, : self.num_words]
            all_RV = (logits_RV.float() / temperature).log_softmax(-1)
            said_R = all_RV.gather(-1, targets_N[part, None])[:, 0]
            entropy_R = -(all_RV.exp() * all_RV.clamp(min=-1e4)).sum(-1)
            if self.top_k is None or self.top_k >= all_RV.shape[1]:
                found.append((said_R, entropy_R, all_RV, None))
            else:
                top_RK, ids_RK = all_RV.topk(self.top_k, dim=-1)
                found.append((said_R, entropy_R, with_rest(top_RK), ids_RK))
        said, entropies, log_probs, ids = zip(*found, strict=True)
        joined = None if ids[0] is None else torch.cat(ids)
        self.kept = Distribution(torch.cat(log_probs), joined)
        return torch.cat(said), torch.cat(entropies)


class ComparedDistribution:
    """Reader of a student: answers with the divergence from a teacher at each position, with
    gradient.

    Args: teacher: at the same positions. divergence: function from log-probabilities of student and
    teacher, [R, K] each, to [R].
    """

    def __init__(
        self, teacher: Distribution, divergence: Callable[[Tensor, Tensor], Tensor]
    ) -> None:
        self.teacher, self.divergence = teacher, divergence
        self.entropy_N = torch.empty(0)
        """Entropies of the student, without gradient."""
        self.kl_N = torch.empty(0)
        """KL(student, teacher) over the outcomes, without gradient."""

    def read(
        self,
        logits: Callable[[Tensor], Tensor],
        hidden_NH: Tensor,
        targets_N: Tensor,
        *,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the targets and the divergences, [N] each."""
        recompute = torch.is_grad_enabled() and len(targets_N) > CHUNK
        chunk = partial(self._chunk, logits, temperature=temperature)
        parts = []
        for start in range(0, max(1, len(targets_N)), CHUNK):
            given = hidden_NH[start : start + CHUNK], targets_N[start : start + CHUNK], start
            if recompute:
                parts.append(checkpoint(chunk, *given, use_reentrant=False))
            else:
                parts.append(chunk(*given))
        said, apart, entropies, kls = (torch.cat(column) for column in zip(*parts, strict=True))
        self.entropy_N, self.kl_N = entropies.detach(), kls.detach()
        return said, apart

    def _chunk(
        self,
        logits: Callable[[Tensor], Tensor],
        hidden_RH: Tensor,
        targets_R: Tensor,
        start: int,
        *,
        temperature: float,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        all_RV = (logits(hidden_RH).float() / temperature).log_softmax(-1)
        said_R = all_RV.gather(-1, targets_R[:, None])[:, 0]
        part = slice(start, start + len(targets_R))
        student_RK, teacher_RK = self._outcomes(all_RV, part)
        with torch.no_grad():
            entropy_R = -(all_RV.exp() * all_RV.clamp(min=-1e4)).sum(-1)
            bounded_RK = teacher_RK.clamp(min=-100.0)
            kl_R = (student_RK.exp() * (student_RK.clamp(min=-100.0) - bounded_RK)).sum(-1)
        return said_R, self.divergence(student_RK, teacher_RK), entropy_R, kl_R

    def _outcomes(self, all_RV: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of student and teacher over the same outcomes."""
        teacher_RK, ids_NK = self.teacher.log_probs_NK[part], self.teacher.ids_NK
        if ids_NK is not None:
            return with_rest(all_RV.gather(-1, ids_NK[part])), teacher_RK
        # Heads may be padded to different widths beyond the same tokenizer's tokens.
        width = min(all_RV.shape[1], teacher_RK.shape[1])
        return all_RV[:, :width].log_softmax(-1), teacher_RK[:, :width].log_softmax(-1)


def with_rest(top_RK: Tensor) -> Tensor:
    """Return log-probabilities [R, K + 1]: the given ones, and that of all other tokens
    together."""
    inside_R = top_RK.logsumexp(-1, keepdim=True).clamp(max=-LEAST_REST)
    return torch.cat([top_RK, (-inside_R.expm1()).log()], dim=-1)
