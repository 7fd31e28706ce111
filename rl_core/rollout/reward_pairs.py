"""Rollouts of a reward model: pairs of conversations as batches, and their scores.

Axes: N pairs, B = 2N rows (chosen and rejected adjacent), T tokens after what both have in common,
with the placeholder whose value is the score.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_core.data.prepare.items import PairItem
from rl_core.data_proto import DataProto, pad_rows
from rl_core.models.checks.row_length import PAIR_KEY, row_limit_of
from rl_core.models.decoding.decode import positions_of
from rl_core.models.modes import evaluation_mode
from rl_core.ranks.dispatch import Collect, Dispatch, Execute, distributed
from rl_core.rollout.chat.conversation_tokens import SIDES, ConversationEncoder
from rl_core.rollout.chat.vision import chat_format
from rl_core.rollout.pairs import pair_columns
from rl_core.rollout.sample_ids import GROUP, SAMPLE, group_columns, groups_of
from rl_core.train import micro_batches
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.stacks.score_stack import MARGINS
from schemas.sections.preference import PreferenceConfig

MARGIN, CONFIDENCE, LONGER = "score_margin", "confidence", "longer_chosen"
SCORES = (MARGIN, CONFIDENCE, LONGER)
"""Columns of `RewardPairEngine.evaluate` besides the reward."""


class RewardPairEngine:
    """Encodes and scores pairs of conversations on one rank, with the reward model that trains
    there."""

    def __init__(
        self,
        backend: FSDPBackend,
        config: PreferenceConfig,
        template_kwargs: Mapping[str, object],
        *,
        micro_batch_size: int,
    ) -> None:
        self.backend = backend
        self.micro_batch_size = max(2, micro_batch_size // 2 * 2)
        self.max_length, self._note = row_limit_of(backend.policy, config.max_length, PAIR_KEY)
        chat = chat_format(backend.bundle, template_kwargs)
        self.encode = ConversationEncoder(chat, config, self.max_length)

    @distributed(execute=Execute.RANK_ZERO)
    def notes(self) -> list[str]:
        """Return a note if the model's own limit on the length of rows is lower than the usual
        one."""
        return [] if self._note is None else [self._note]

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def rollout(self, pairs: DataProto) -> DataProto | None:
        """Return the rows to train on.

        Args: pairs: rows with the object column `item`.
        Returns: per pair the chosen and the rejected row with `input_ids, attention_mask,
        position_ids` [B, P+T], `response_mask` [B, T] (1 at the placeholder, zero in idle pairs),
        `rewards` [B] (1 chosen, 0 rejected), `margins` [B], and the texts as object columns; None
        on a rank that does not answer for its replica.
        """
        batch = self._batch(pairs)
        if self.backend.rank_info.is_head:
            return batch
        return None

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def evaluate(self, pairs: DataProto) -> DataProto | None:
        """Score each pair, one row per pair; an idle one counts as wrong.

        Returns: `rewards` [N], 1 if the chosen conversation has the higher score; the columns of
        `SCORES`: the lead of the chosen score m, the probability sigmoid(m) that
        the model gives to the chosen one, and whether the chosen answer is the longer one in tokens
        (1/2 for a tie), by which a rule that goes by length alone would be judged; NaN in idle
        pairs. Object columns, with the preferred answer as `response`.
        """
        items = list(pairs.non_tensor_batch["item"])
        batch = self._batch(pairs)
        with torch.no_grad(), evaluation_mode(self.backend.policy):
            scores_N2 = self._scores(batch).view(-1, 2)
        if self.backend.rank_info.is_head:
            return self._scored(items, batch, scores_N2)
        return None

    def _batch(self, pairs: DataProto) -> DataProto:
        items = list(pairs.non_tensor_batch["item"])
        tokens = [self.encode(item) for item in items]
        answers = [answer for pair in tokens for answer in (pair.chosen, pair.rejected)]
        widths = self.backend.all_reduce_max(
            [float(max(len(pair.prompt) for pair in tokens)), float(max(map(len, answers)))]
        )
        prompt_width, answer_width = map(int, widths)
        pad = self.encode.chat.tokenizer.pad_token_id
        prompts = [torch.tensor(pair.prompt) for pair in tokens for _ in SIDES]
        rests = [torch.tensor(answer) for answer in answers]
        ids = torch.cat(
            [
                pad_rows(prompts, pad, left=True, length=prompt_width),
                pad_rows(rests, pad, length=answer_width),
            ],
            1,
        )
        used = torch.cat(
            [
                pad_rows(list(map(torch.ones_like, prompts)), 0, left=True, length=prompt_width),
                pad_rows(list(map(torch.ones_like, rests)), 0, length=answer_width),
            ],
            1,
        )
        lengths_B = torch.tensor([len(answer) - 1 for answer in answers])
        learns_B = torch.tensor([pair.idle is None for pair in tokens]).repeat_interleave(2)
        mask_BT = torch.zeros(len(answers), answer_width, dtype=torch.long)
        mask_BT[torch.arange(len(answers)), lengths_B] = learns_B.long()
        tensors = {
            "input_ids": ids,
            "attention_mask": used,
            "position_ids": positions_of(used),
            "response_mask": mask_BT,
            "rewards": torch.tensor([1.0, 0.0]).repeat(len(items)),
            "failed": torch.zeros(2 * len(items), dtype=torch.bool),
            "num_tokens": lengths_B * learns_B,
            MARGINS: torch.tensor([item.get("margin", 0.0) for item in items]).repeat_interleave(2),
        }
        columns = group_columns(groups_of(pairs), len(SIDES))
        return DataProto.from_dict(tensors, columns | pair_columns(items, tokens))

    def _scores(self, batch: DataProto) -> Tensor:
        """Return scores, [B] on the CPU. Every rank runs the same number of passes, since shards
        have equal sizes."""
        scores_B = torch.zeros(len(batch))
        for rows in micro_batches.by_row_count(list(range(len(batch))), self.micro_batch_size):
            # The batch itself stays where it is: `to` would move it.
            micro = micro_batches.take(batch, rows).to(self.backend.device)
            names = ("input_ids", "attention_mask", "position_ids", "response_mask")
            found_BT = self.backend.policy(*(micro.tensor(name) for name in names))[0]
            scores_B[rows] = found_BT.sum(1).cpu()
        return scores_B

    def _scored(self, items: list[PairItem], batch: DataProto, scores_N2: Tensor) -> DataProto:
        lengths_N2 = batch.tensor("num_tokens").view(-1, 2)
        idle_N = batch.tensor("response_mask").sum(1).view(-1, 2)[:, 0] == 0
        leads_N = (scores_N2[:, 0] - scores_N2[:, 1]).masked_fill(idle_N, torch.nan)
        longer_N = (lengths_N2[:, 0] - lengths_N2[:, 1]).sign()
        told_N = leads_N > 0
        tensors = {
            "rewards": told_N.float(),
            "num_tokens": lengths_N2[:, 0],
            MARGIN: leads_N,
            CONFIDENCE: leads_N.sigmoid(),
            LONGER: (0.5 * (longer_N + 1)).masked_fill(idle_N, torch.nan),
        }
        columns = {}
        for name in (GROUP, SAMPLE, "uid", "prompt", "stop_reason", "error"):
            columns[name] = list(batch.non_tensor_batch[name][::2])
        answers = []
        for item, told in zip(items, told_N.tolist(), strict=True):
            answers.append(item[SIDES[0] if told else SIDES[1]])
        truths = [item["chosen"] for item in items]
        return DataProto.from_dict(
            tensors, {**columns, "response": answers, "ground_truth": truths}
        )
