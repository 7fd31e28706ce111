"""Substitute of a rollout for rows that hold the answers to learn, and the measures of held-out
ones.

Axes: B rows, P + T tokens of prompt and response, N positions that are taught, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rl_core.data.prepare.items import PromptItem
from rl_core.data_proto import DataProto, pad_rows
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.checks.row_length import SFT_KEY, row_limit_of
from rl_core.models.decoding.decode import positions_of
from rl_core.ranks.dispatch import Collect, Dispatch, Execute, distributed
from rl_core.rollout.chat.taught_row import OVERLONG, TaughtEncoder, TaughtRow
from rl_core.rollout.chat.vision import chat_format
from rl_core.rollout.sample_ids import group_columns, groups_of
from rl_core.train import micro_batches
from rl_core.train.fsdp import FSDPBackend
from schemas.sections.sft import SftConfig

LOG_PROB, ACCURACY = "log_prob", "token_accuracy"
MEASURES = (LOG_PROB, ACCURACY)
"""Columns of `TaughtEngine.evaluate` besides the reward."""
POSITIONS_AT_ONCE = 512
"""Positions whose logits exist at once."""


class TaughtEngine:
    """Encodes and measures given answers on one rank, with the policy that trains there."""

    def __init__(
        self,
        backend: FSDPBackend,
        config: SftConfig,
        template_kwargs: Mapping[str, object],
        *,
        micro_batch_size: int,
    ) -> None:
        self.backend, self.micro_batch_size = backend, micro_batch_size
        self.max_length, self._note = row_limit_of(backend.policy, config.max_length, SFT_KEY)
        self.encode = TaughtEncoder(
            chat_format(backend.bundle, template_kwargs), config, self.max_length
        )

    @distributed(execute=Execute.RANK_ZERO)
    def notes(self) -> list[str]:
        """Return a note if the model's own limit on the length of rows is lower than the usual
        one."""
        return [] if self._note is None else [self._note]

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def rollout(self, rows: DataProto) -> DataProto | None:
        """Return the rows to train on; rows with the same prompt are put next to each other, so
        that they can share it.

        Args: rows: rows with the object column `item`.
        Returns: `input_ids, attention_mask, position_ids` [B, P+T], `response_mask` [B, T] (1 where
        a token is trained), `rewards` [B] (1), and the texts as object columns; None on a rank that
        does not answer for its replica. Raises: DataError naming a row that cannot be trained.
        """
        first: dict[str, int] = {}
        prompts = [str(item["prompt"]) for item in rows.non_tensor_batch["item"]]
        places = []
        for place, prompt in enumerate(prompts):
            places.append(first.setdefault(prompt, place))
        batch = self._batch(rows[sorted(range(len(places)), key=places.__getitem__)])
        if self.backend.rank_info.is_head:
            return batch
        return None

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def evaluate(self, rows: DataProto) -> DataProto | None:
        """Measure the answer of each row, with the weights of evaluations.

        Returns: `rewards` [B], 1 if every token of the answer is the likeliest one after those
        before it, which is when greedy decoding writes it; `log_prob` and `token_accuracy` [B],
        means over the answer's tokens, NaN for a row without; and object columns, with the
        likeliest tokens as `response`.
        """
        batch = self._batch(rows)
        mask_BT = batch.tensor("response_mask").bool()
        log_probs_BT, likeliest_BT = self._measured(batch)
        if not self.backend.rank_info.is_head:
            return None
        lengths_B = mask_BT.sum(1)
        targets_BT = batch.tensor("input_ids")[:, -mask_BT.shape[1] :]
        hits_B = ((likeliest_BT == targets_BT) & mask_BT).sum(1)
        none_B = lengths_B == 0
        response = []
        for tokens, mask in zip(likeliest_BT, mask_BT, strict=True):
            response.append(self.encode.chat.decode(tokens[mask].tolist()))
        tensors = {
            "rewards": ((hits_B == lengths_B) & ~none_B).float(),
            "num_tokens": lengths_B,
            LOG_PROB: (log_probs_BT.sum(1) / lengths_B).masked_fill(none_B, math.nan),
            ACCURACY: (hits_B / lengths_B).masked_fill(none_B, math.nan),
        }
        columns = {name: list(values) for name, values in batch.non_tensor_batch.items()}
        return DataProto.from_dict(tensors, columns | {"response": response})

    def _batch(self, rows: DataProto) -> DataProto:
        items = list(rows.non_tensor_batch["item"])
        taught = [self.encode(item) for item in items]
        widths = self.backend.all_reduce_max(
            [
                float(max(len(row.prompt) for row in taught)),
                float(max(len(row.response) for row in taught)),
            ]
        )
        prompt_width, response_width = map(int, widths)
        pad = self.encode.chat.tokenizer.pad_token_id
        prompts = [torch.tensor(row.prompt) for row in taught]
        responses = [torch.tensor(row.response) for row in taught]

        def padded(prompt: list[Tensor], response: list[Tensor], value: int) -> Tensor:
            return torch.cat(
                [
                    pad_rows(prompt, value, left=True, length=prompt_width),
                    pad_rows(response, value, length=response_width),
                ],
                1,
            )

        attention_mask = padded(
            [torch.ones_like(one) for one in prompts],
            [torch.ones_like(one) for one in responses],
            0,
        )
        masks = [torch.tensor(row.mask) for row in taught]
        mask_BT = pad_rows(masks, 0, length=response_width)
        tensors = {
            "input_ids": padded(prompts, responses, pad),
            "attention_mask": attention_mask,
            "position_ids": positions_of(attention_mask),
            "response_mask": mask_BT,
            "rewards": torch.ones(len(items)),
            "failed": torch.zeros(len(items), dtype=torch.bool),
            "num_tokens": mask_BT.sum(1),
        }
        return DataProto.from_dict(
            tensors, group_columns(groups_of(rows), 1) | _texts(items, taught)
        )

    def _measured(self, batch: DataProto) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the answers' tokens and the likeliest tokens in their
        places, [B, T] on the CPU. Every rank runs the same number of passes, since shards have
        equal sizes."""
        shape = batch.tensor("response_mask").shape
        log_probs_BT, likeliest_BT = torch.zeros(shape), torch.zeros(shape, dtype=torch.long)
        with torch.no_grad(), self.backend.gathered() as policy:
            for rows in micro_batches.by_row_count(list(range(len(batch))), self.micro_batch_size):
                micro = micro_batches.take(batch, rows).to(self.backend.device)
                mask_BT = micro.tensor("response_mask").bool()
                found = _scores(policy, micro, mask_BT)
                for target, values_N in zip((log_probs_BT, likeliest_BT), found, strict=True):
                    values_BT = torch.zeros(mask_BT.shape, dtype=target.dtype)
                    values_BT[mask_BT.cpu()] = values_N.cpu().to(target.dtype)
                    target[rows, : values_BT.shape[1]] = values_BT
        return log_probs_BT, likeliest_BT


def _scores(policy: CausalLMPolicy, micro: DataProto, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of the taught tokens and the likeliest ones there, [N]."""
    ids_BL = micro.tensor("input_ids")
    inputs = policy.inputs(
        ids_BL,
        micro.tensor("attention_mask"),
        micro.tensor("position_ids"),
        list(micro.non_tensor_batch["media"]),
    )
    acts_BL = torch.zeros_like(ids_BL, dtype=torch.bool)
    acts_BL[:, -mask_BT.shape[1] - 1 : -1] = mask_BT
    hidden_NH = policy.hidden_states(inputs)[acts_BL]
    targets_N = ids_BL[:, -mask_BT.shape[1] :][mask_BT]
    log_probs, likeliest = [torch.empty(0)], [torch.empty(0, dtype=torch.long)]
    for hidden_CH, targets_C in zip(
        hidden_NH.split(POSITIONS_AT_ONCE), targets_N.split(POSITIONS_AT_ONCE), strict=True
    ):
        logits_CV = policy.logits(hidden_CH).float()
        log_probs.append(logits_CV.log_softmax(-1).gather(1, targets_C[:, None])[:, 0].cpu())
        likeliest.append(logits_CV.argmax(-1).cpu())
    return torch.cat(log_probs), torch.cat(likeliest)


def _texts(items: list[PromptItem], taught: list[TaughtRow]) -> dict[str, Sequence[object]]:
    answers = [_answer(item) for item in items]
    return {
        "uid": [item["uid"] for item in items],
        "prompt": [item["prompt"] for item in items],
        "response": answers,
        "ground_truth": answers,
        "stop_reason": [row.idle if row.idle == OVERLONG else "eos" for row in taught],
        "error": [None for _ in items],
        "media": [row.media for row in taught],
    }


def _answer(item: PromptItem) -> str:
    """Return what the assistant says in a row, its turns apart."""
    said = []
    for message in item["env_extras"].get("completion") or []:
        if message["role"] == "assistant":
            said.append(str(message.get("content") or ""))
    return "\n\n".join(said)
