"""Drawing of tokens when some may not be drawn, or repeated ones count less.

Axes: R rows being decoded, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rl_core.models.decoding.pick import pick
from rl_core.models.decoding.token_choice import (
    LEFT_OUT,
    StepSupport,
    kept_tokens,
    penalised,
    steps_of,
)
from schemas.sections.sampling import SamplingConfig


class Choosing:
    """Draws the tokens of a batch of replies, step by step.

    Args: choice: what may be drawn. temperature: 0 is greedy, with the log-probabilities of
    temperature 1. eos_ids: tokens that end a reply. prompts_R: tokens before each row's reply.
    """

    def __init__(
        self,
        choice: SamplingConfig,
        temperature: float,
        eos_ids: Sequence[int],
        prompts_R: Sequence[Sequence[int]],
    ) -> None:
        self.choice, self.temperature = choice, temperature
        self.eos_ids = np.array(eos_ids, np.int32)
        self.prompts_R = prompts_R
        self.num_drawn = 0
        self._seen_RV: Tensor | None = None

    def draw(
        self, logits_RV: Tensor, random_R1: Tensor
    ) -> tuple[Tensor, Tensor, list[StepSupport | None]]:
        """Draw the next token of each row.

        Returns: tokens [R], their log-probabilities [R], and which tokens could be drawn, None for
        all of them.
        """
        scores_RV, supports = self.scores(logits_RV)
        if self.temperature:
            tokens_R = pick(scores_RV.softmax(-1), random_R1)
        else:
            tokens_R = scores_RV.argmax(-1)
        self.add(tokens_R)
        # The operations of training.
        log_probs_R = scores_RV.log_softmax(-1).gather(-1, tokens_R[:, None])[:, 0]
        return tokens_R, log_probs_R, supports

    def scores(self, logits_RV: Tensor) -> tuple[Tensor, list[StepSupport | None]]:
        """Return the logits [R, V] that the next tokens are drawn by, and which could be drawn."""
        choice, scores_RV = self.choice, logits_RV.float()
        if choice.repetition_penalty != 1:
            seen_RV = self._seen(scores_RV)
            scores_RV = penalised(scores_RV, seen_RV, choice.repetition_penalty)
        supports: list[StepSupport | None] = [None] * len(scores_RV)
        if self.num_drawn < choice.min_new_tokens:
            ids = self.eos_ids[self.eos_ids < scores_RV.shape[1]]
            columns = torch.from_numpy(ids.astype(np.int64)).to(scores_RV.device)
            scores_RV = scores_RV.index_fill(1, columns, LEFT_OUT)
            supports = [StepSupport(ids, is_kept=False)] * len(scores_RV)
        if self.temperature not in (0.0, 1.0):
            scores_RV = scores_RV / self.temperature
        if self.temperature and not choice.cuts_nothing:
            kept_RV = kept_tokens(scores_RV, choice)
            scores_RV = scores_RV.masked_fill(~kept_RV, LEFT_OUT)
            supports = list(steps_of(kept_RV))
        return scores_RV, supports

    def add(self, tokens_R: Tensor) -> None:
        """Append a token to each row."""
        self.num_drawn += 1
        if self._seen_RV is not None:
            self._seen_RV.scatter_(1, tokens_R[:, None], True)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, ascending."""
        if self._seen_RV is not None:
            self._seen_RV = self._seen_RV[rows]

    def _seen(self, scores_RV: Tensor) -> Tensor:
        """Return the tokens of prompts and replies so far, [R, V]."""
        if self._seen_RV is None:
            self._seen_RV = torch.zeros_like(scores_RV, dtype=torch.bool)
            for row, prompt in enumerate(self.prompts_R):
                ids = torch.tensor(sorted(set(prompt)), device=scores_RV.device)
                self._seen_RV[row, ids[ids < scores_RV.shape[1]]] = True
        return self._seen_RV
