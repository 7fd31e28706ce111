"""Choice of the tokens that may be drawn: transformers' logits processors, in its order.

Sampler and trainer use the same functions, so a token has one log-probability in both. The set of
tokens that the sampler kept is recorded (`Support`) and not computed again: the trainer's logits
are rounded differently, and a token at the edge would be in one set and not in the other. (The
"keep sampling mask" of DeepSeek-V3.2, arXiv 2512.02556, section 3.1.)

Axes: R rows (of a decoding step, or positions of a training pass), V vocabulary, C candidates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from schemas.sections.sampling import SamplingConfig

LEFT_OUT = float("-inf")
"""Logit of a token that may not be drawn."""
CANDIDATES = 512
"""Most probable tokens among which a nucleus is looked for first."""
ROUNDING = 1e-5
"""Largest difference between sums of probabilities in different orders, with a margin."""
SUPPORT = "support"
"""Object column of a rollout with the tokens that could be drawn, a `Support` per row."""


def penalised(logits_RV: Tensor, seen_RV: Tensor, penalty: float) -> Tensor:
    """Lower the logits of tokens that occurred (CTRL, arXiv 1909.05858, section 4.1).

    Args: seen_RV: true for tokens of the prompt and the reply so far. penalty: positive logits are
    divided by it, negative ones multiplied.
    """
    lowered_RV = torch.where(logits_RV > 0, logits_RV / penalty, logits_RV * penalty)
    return torch.where(seen_RV, lowered_RV, logits_RV)


def kept_tokens(scores_RV: Tensor, choice: SamplingConfig) -> Tensor:
    """Return the tokens that `top_k`, then `top_p`, then `min_p` leave, as a mask [R, V].

    Args: scores_RV: logits after the temperature, float32; -inf for tokens that are left out
    already.
    """
    kept_RV = scores_RV > LEFT_OUT
    if choice.top_k is not None:
        size = min(choice.top_k, scores_RV.shape[1])
        kept_RV &= scores_RV >= scores_RV.topk(size).values[:, -1:]
    if choice.top_p < 1:
        kept_RV &= _nucleus(scores_RV.masked_fill(~kept_RV, LEFT_OUT), choice.top_p)
    if choice.min_p:
        shares_RV = scores_RV.masked_fill(~kept_RV, LEFT_OUT).softmax(-1)
        kept_RV &= shares_RV >= choice.min_p * shares_RV.amax(-1, keepdim=True)
    return kept_RV


def _nucleus(scores_RV: Tensor, top_p: float) -> Tensor:
    """Return the most probable tokens that have `top_p` together (Holtzman et al.,
    arXiv 1904.09751), as transformers and vLLM find them.

    Most rows need only their few most probable tokens; the whole vocabulary is sorted for rows in
    which that leaves a doubt.
    """
    shares_RV = scores_RV.softmax(-1)
    top_RC = shares_RV.topk(min(CANDIDATES, shares_RV.shape[1])).values
    before_RC = top_RC.double().cumsum(-1) - top_RC
    num_kept_R1 = (before_RC < top_p).sum(-1, keepdim=True)
    last_R1 = top_RC.gather(1, num_kept_R1 - 1)
    next_R1 = top_RC.gather(1, num_kept_R1.clamp_max(top_RC.shape[1] - 1))
    # Not if the end lies beyond the candidates, among equals, or within rounding of another one.
    is_near_R = (before_RC - top_p).abs().amin(-1) < ROUNDING
    doubtful = ((next_R1 >= last_R1)[:, 0] | is_near_R).nonzero()[:, 0]
    kept_RV = shares_RV >= last_R1
    if len(doubtful):
        kept_RV[doubtful] = _nucleus_by_sorting(scores_RV[doubtful], top_p)
    return kept_RV


def _nucleus_by_sorting(scores_RV: Tensor, top_p: float) -> Tensor:
    """Return the nucleus by the operations of transformers and vLLM, so that of equally probable
    tokens the same ones go.

    Tokens are left out from the least probable while their sum stays within 1 - `top_p`.
    """
    sorted_RV, order_RV = scores_RV.sort(-1)
    kept_RV = sorted_RV.softmax(-1).cumsum(-1) > 1 - top_p
    kept_RV[:, -1] = True
    return torch.zeros_like(kept_RV).scatter_(1, order_RV, kept_RV)


@dataclass(frozen=True)
class Support:
    """The tokens that could be drawn at each position of a row, packed."""

    sizes_T: np.ndarray
    """Number of ids of each position, int32: n of kept tokens, or -1 - n of tokens left out of the
    whole vocabulary."""
    ids: np.ndarray
    """Ids of all positions end to end, int32."""

    @classmethod
    def whole(cls, num_positions: int) -> Support:
        """Return positions without a restriction, such as those of an observation."""
        return cls(np.full(num_positions, -1, np.int32), np.empty(0, np.int32))

    @classmethod
    def joined(cls, parts: Iterable[Support]) -> Support:
        """Return the positions of several parts end to end."""
        found = [cls.whole(0), *parts]
        return cls(
            np.concatenate([one.sizes_T for one in found]),
            np.concatenate([one.ids for one in found]),
        )

    def __len__(self) -> int:
        return len(self.sizes_T)


@dataclass(frozen=True)
class StepSupport:
    """The tokens that could be drawn at one step of one row."""

    ids: np.ndarray
    is_kept: bool
    """True if `ids` are kept, false if they are left out."""


def support_of(steps: Sequence[StepSupport | None]) -> Support:
    """Return the support of a reply, step by step; None stands for the whole vocabulary."""
    sizes = []
    for one in steps:
        if one is None:
            sizes.append(-1)
        elif one.is_kept:
            sizes.append(len(one.ids))
        else:
            sizes.append(-1 - len(one.ids))
    ids = [one.ids for one in steps if one is not None]
    return Support(
        np.array(sizes, np.int32), np.concatenate([np.empty(0, np.int32), *ids], dtype=np.int32)
    )


def steps_of(kept_RV: Tensor) -> list[StepSupport]:
    """Return the kept tokens of each row."""
    num_kept = kept_RV.sum(-1).tolist()
    columns = kept_RV.nonzero()[:, 1].to(torch.int32).cpu().numpy()
    parts = np.split(columns, np.cumsum(num_kept)[:-1])
    return [StepSupport(part, is_kept=True) for part in parts]


class PositionSupport:
    """The supports of the trained positions of a batch, in row order."""

    def __init__(self, supports_B: Sequence[Support], trained_BT: np.ndarray) -> None:
        """Select positions.

        Args: supports_B: of each row's response, whose padding has none. trained_BT: true for the
        positions that are trained.
        """
        sizes, ids = [], []
        for support, trained_T in zip(supports_B, trained_BT, strict=True):
            chosen_T = np.zeros(len(support), bool)
            common = min(len(support), len(trained_T))
            chosen_T[:common] = trained_T[:common]
            num_ids_T = np.where(support.sizes_T < 0, -1 - support.sizes_T, support.sizes_T)
            sizes.append(support.sizes_T[chosen_T])
            ids.append(support.ids[np.repeat(chosen_T, num_ids_T)])
        self.sizes_N = np.concatenate(sizes)
        self.ids = np.concatenate(ids)
        num_ids_N = np.where(self.sizes_N < 0, -1 - self.sizes_N, self.sizes_N)
        self.bounds = np.concatenate([[0], np.cumsum(num_ids_N)])

    def mask(self, start: int, stop: int, num_tokens: int, device: torch.device) -> Tensor:
        """Return the tokens that could be drawn at positions start..stop-1, [R, V]."""
        sizes_R = self.sizes_N[start:stop]
        ids_here = self.ids[int(self.bounds[start]) : int(self.bounds[stop])]
        ids = torch.from_numpy(ids_here.astype(np.int64))
        is_kept_R = torch.from_numpy(sizes_R >= 0)
        num_ids_R = torch.from_numpy(np.where(sizes_R < 0, -1 - sizes_R, sizes_R).astype(np.int64))
        row = torch.arange(stop - start).repeat_interleave(num_ids_R)
        mask_RV = (~is_kept_R)[:, None].repeat(1, num_tokens)
        mask_RV[row, ids] = is_kept_R[row]
        return mask_RV.to(device)
