"""Substitute of a rollout for rows that already have answers: pairs as batches, and their scores.

Axes: N pairs, B = 2N rows (chosen and rejected adjacent), T tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rl_core.data.prepare.items import PairItem
from rl_core.data_proto import DataProto, pad_rows
from rl_core.errors import RLTrainError
from rl_core.models.checks.row_length import PAIR_KEY, row_limit_of
from rl_core.models.decoding.decode import positions_of
from rl_core.models.modes import evaluation_mode
from rl_core.ranks.dispatch import Collect, Dispatch, Execute, distributed
from rl_core.rollout.chat.pair_tokens import Idle, PairEncoder, PairTokens
from rl_core.rollout.chat.vision import chat_format
from rl_core.rollout.sample_ids import GROUP, SAMPLE, group_columns, groups_of
from rl_core.train import micro_batches
from rl_core.train.fsdp import FSDPBackend
from schemas.sections.preference import PreferenceConfig

SIDES = ("chosen", "rejected")
SCORES = ("log_prob_margin", "reward_margin", "reward_accuracy")
"""Columns of `PairEngine.evaluate` besides the reward; the last two only with a reference."""


class PairEngine:
    """Encodes and scores pairs on one rank, with the policy that trains there."""

    def __init__(
        self,
        backend: FSDPBackend,
        config: PreferenceConfig,
        template_kwargs: Mapping[str, object],
        *,
        beta: float,
        micro_batch_size: int,
    ) -> None:
        self.backend, self.beta, self.micro_batch_size = (
            backend,
            beta,
            max(2, micro_batch_size // 2 * 2),
        )
        self.max_length, self._note = row_limit_of(backend.policy, config.max_length, PAIR_KEY)
        self.encode = PairEncoder(
            chat_format(backend.bundle, template_kwargs), config, self.max_length
        )

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
        position_ids` [B, P+T], `response_mask` [B, T] (zero in idle pairs), `rewards` [B] (1
        chosen, 0 rejected), `ref_log_probs` [B, T] if the items have them, and the texts as object
        columns; None on a rank that does not answer for its replica.
        """
        batch = self._batch(pairs)
        if self.backend.rank_info.is_head:
            return batch
        return None

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def evaluate(self, pairs: DataProto, with_reference: bool) -> DataProto | None:
        """Score each pair, one row per pair; an idle one counts as wrong.

        Returns: `rewards` [N], 1 if a token of the chosen answer is likelier on average than one of
        the rejected; the columns of `SCORES`; and object columns, with the preferred answer as
        `response`.
        """
        items = list(pairs.non_tensor_batch["item"])
        batch = self._batch(pairs)
        with torch.no_grad(), evaluation_mode(self.backend.policy):
            sums_N2 = self._log_probs(self.backend.policy, batch).sum(1).view(-1, 2)
        references_N2 = self._references(batch).sum(1).view(-1, 2) if with_reference else None
        if self.backend.rank_info.is_head:
            return self._scored(items, batch, sums_N2, references_N2)
        return None

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def reference(self, pairs: DataProto) -> DataProto | None:
        """Return the reference's log-probabilities of both answers' tokens, one row per pair; empty
        for an idle pair.

        Raises: RLTrainError when the policy has been trained and is its own only reference.
        """
        batch = self._batch(pairs)
        log_probs_BT, lengths_B = (
            self._references(batch),
            batch.tensor("response_mask").sum(1).tolist(),
        )
        if not self.backend.rank_info.is_head:
            return None
        rows = []
        for row, length in enumerate(lengths_B):
            rows.append(log_probs_BT[row, :length].tolist())
        return DataProto.from_dict(non_tensors={side: rows[at::2] for at, side in enumerate(SIDES)})

    def _batch(self, pairs: DataProto) -> DataProto:
        items = list(pairs.non_tensor_batch["item"])
        tokens = [self.encode(item) for item in items]
        answers = [answer for pair in tokens for answer in (pair.chosen, pair.rejected)]
        widths = self.backend.all_reduce_max(
            [
                float(max(len(pair.prompt) for pair in tokens)),
                float(max(len(answer) for answer in answers)),
            ]
        )
        prompt_width, answer_width = map(int, widths)
        pad = self.encode.tokenizer.pad_token_id
        prompts_N = [torch.tensor(pair.prompt) for pair in tokens]
        ids = torch.cat(
            [
                pad_rows(prompts_N, pad, left=True, length=prompt_width).repeat_interleave(2, 0),
                pad_rows([torch.tensor(answer) for answer in answers], pad, length=answer_width),
            ],
            1,
        )
        prompt_mask = pad_rows(
            [torch.ones_like(one) for one in prompts_N], 0, left=True, length=prompt_width
        )
        answer_mask = pad_rows(
            [torch.ones(len(answer)).long() for answer in answers], 0, length=answer_width
        )
        attention = torch.cat([prompt_mask.repeat_interleave(2, 0), answer_mask], 1)
        learns_B = torch.tensor([pair.idle is None for pair in tokens]).repeat_interleave(2)
        mask_BT = answer_mask * learns_B[:, None]
        tensors = {
            "input_ids": ids,
            "attention_mask": attention,
            "position_ids": positions_of(attention),
            "response_mask": mask_BT,
            "rewards": torch.tensor([1.0, 0.0]).repeat(len(items)),
            "failed": torch.zeros(2 * len(items), dtype=torch.bool),
            "num_tokens": mask_BT.sum(1),
        }
        if "reference" in items[0]:
            tensors["ref_log_probs"] = _stored_references(items, mask_BT)
        ids = group_columns(groups_of(pairs), len(SIDES))
        return DataProto.from_dict(tensors, ids | pair_columns(items, tokens))

    def _log_probs(self, policy: nn.Module, batch: DataProto) -> Tensor:
        """Return log-probabilities, [B, T] on the CPU. Every rank runs the same number of passes,
        since shards have equal sizes."""
        log_probs_BT = torch.zeros(batch.tensor("response_mask").shape)
        for rows in micro_batches.by_row_count(list(range(len(batch))), self.micro_batch_size):
            # The batch itself stays where it is: `to` would move it.
            micro = micro_batches.take(batch, rows).to(self.backend.device)
            names = ("input_ids", "attention_mask", "position_ids", "response_mask")
            media_B = list(micro.non_tensor_batch["media"])
            found_BT = policy(*(micro.tensor(name) for name in names), media_B=media_B)[0]
            log_probs_BT[rows, : found_BT.shape[1]] = found_BT.cpu()
        return log_probs_BT

    def _references(self, batch: DataProto) -> Tensor:
        assert batch.batch is not None
        if (stored_BT := batch.batch.get("ref_log_probs", None)) is not None:
            return stored_BT
        with self._reference_policy() as policy:
            return self._log_probs(policy, batch)

    @contextmanager
    def _reference_policy(self) -> Iterator[nn.Module]:
        backend = self.backend
        if backend.reference is not None or backend.lora_cfg is not None:
            with backend.reference_policy() as policy:
                yield policy
            return
        if backend.scheduler.last_epoch:
            raise RLTrainError(
                "the policy has been trained and there is no copy of the model before training"
            )
        with torch.no_grad():
            yield backend.policy

    def _scored(
        self,
        items: list[PairItem],
        batch: DataProto,
        sums_N2: Tensor,
        references_N2: Tensor | None,
    ) -> DataProto:
        lengths_N2 = batch.tensor("num_tokens").view(-1, 2)
        ahead_N = _ahead(sums_N2 / lengths_N2.clamp_min(1))
        told_N = ahead_N > 0
        tensors = {
            "rewards": told_N.float(),
            "num_tokens": lengths_N2[:, 0],
            "log_prob_margin": ahead_N,
        }
        if references_N2 is not None:
            margin_N = self.beta * _ahead(sums_N2 - references_N2)
            # A tie counts as half right: before training every margin is zero.
            tensors |= {"reward_margin": margin_N, "reward_accuracy": 0.5 * (margin_N.sign() + 1)}
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


def _stored_references(items: list[PairItem], mask_BT: Tensor) -> Tensor:
    rows = []
    for item in items:
        for values in item.get("reference", ()):
            rows.append(torch.tensor(values, dtype=torch.float32))
    for row, (values, length) in enumerate(zip(rows, mask_BT.sum(1).tolist(), strict=True)):
        if len(values) != length:
            raise RLTrainError(
                f"pair {items[row // 2]['uid']}: {len(values)} reference log-probabilities for "
                f"{length} tokens; the cached ones belong to another tokenizer or recipe"
            )
    return pad_rows(rows, 0.0, length=mask_BT.shape[1])


def pair_columns(items: list[PairItem], tokens: list[PairTokens]) -> dict[str, Sequence[object]]:
    """Return the texts of pairs and why some have no learning signal, as object columns, two rows
    per pair."""
    both = []
    for item, pair in zip(items, tokens, strict=True):
        for side in SIDES:
            both.append((item, side, pair))
    reasons = {None: "eos", Idle.OVERLONG: "length", Idle.EQUAL: "equal"}
    return {
        "uid": [item["uid"] for item, _, _ in both],
        "prompt": [item["prompt"] for item, _, _ in both],
        "response": [item[side] for item, side, _ in both],
        "ground_truth": [side for _, side, _ in both],
        "stop_reason": [reasons[pair.idle] for _, _, pair in both],
        "error": [None for _ in both],
        "media": [pair.media for _, _, pair in both],
    }


def _ahead(values_N2: Tensor) -> Tensor:
    return values_N2[:, 0] - values_N2[:, 1]
