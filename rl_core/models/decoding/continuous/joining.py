"""Rows that join a decoding batch and leave it between tokens (continuous batching).

Prompts are read and their rows then stand beside the others, aligned at their ends, padding first.
Rows can share a batch where every layer of the cache is plain and padding disturbs nobody;
elsewhere (sliding windows, recurrences) prompts that were read together stay a batch of their own.

Axes: P prompts, R rows, H hidden features, L positions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from rl_core.kernels import Packed
from rl_core.models.decoding.decode import Reader, may_be_batched, read_prompts
from rl_core.models.decoding.decoder_memory import WholeRows
from rl_core.models.decoding.growing_cache import GrowingLayer
from rl_core.models.decoding.next_states import (
    ByPlainDecoder,
    ByRecomputing,
    ByTransformers,
    next_states,
)
from rl_core.models.decoding.request import Request
from rl_core.models.policy import TokenPolicy


class JoinedRows:
    """Rows that are decoded together.

    `states_RH` are the hidden states of each row's last token.
    """

    def __init__(
        self, policy: TokenPolicy, read: Reader, states_RH: Tensor, last_R: Tensor
    ) -> None:
        self.policy, self.read = policy, read
        self.states_RH, self.last_R = states_RH, last_R

    @classmethod
    def of(
        cls,
        policy: TokenPolicy,
        requests: Sequence[Request],
        pad_id: int,
        device: torch.device,
        packed: Packed,
    ) -> JoinedRows:
        """Read the prompts of requests, each once, for the rows that continue them."""
        prompts = read_prompts(policy, list(requests), pad_id, device)
        counts_P, backbone = prompts.counts_P, policy.backbone
        states_RH = prompts.states_BPH[:, -1].repeat_interleave(counts_P, 0)
        last_R = prompts.last_P.repeat_interleave(counts_P)
        read: Reader
        if prompts.cache is None:
            rows = (
                one.repeat_interleave(counts_P, 0) for one in (prompts.ids_BP, prompts.attention_BP)
            )
            read = ByRecomputing(backbone, *rows, together=may_be_batched(policy))
        else:
            probe = prompts.ids_BP[:, -1], policy.reply_positions(prompts.last_P, 0)
            attention_BP = prompts.attention_BP
            read = next_states(
                backbone,
                prompts.cache,
                counts_P,
                attention_BP,
                packed,
                probe,
                graphs=False,
                joins=True,
            )
        return cls(policy, read, states_RH, last_R)

    def __len__(self) -> int:
        return len(self.last_R)

    @property
    def can_be_joined(self) -> bool:
        """True if rows of other prompts can stand beside these."""
        if not may_be_batched(self.policy):
            return False
        return _layers(self.read) is not None

    def join(self, others: Sequence[JoinedRows]) -> None:
        """Append the rows of others, which can all be joined and read tokens in the same way."""
        if not others:
            return
        layers = [_layers(one.read) for one in (self, *others)]
        for first, *rest in zip(*(one or [] for one in layers), strict=True):
            first.join(rest)
        if isinstance(self.read, ByPlainDecoder):
            memories = [_memory(one.read) for one in (self, *others)]
            memories[0].mask_R11L = _cat([one.mask_R11L for one in memories], float("-inf"))
        else:
            assert isinstance(self.read, ByTransformers)
            masks = [one.read.attention_RL for one in (self, *others)]  # type: ignore[attr-defined]
            self.read.attention_RL = _cat(masks, 0)
        self.states_RH = torch.cat([self.states_RH, *(one.states_RH for one in others)])
        self.last_R = torch.cat([self.last_R, *(one.last_R for one in others)])

    def keep(self, places: Sequence[int]) -> None:
        """Keep these rows, ascending, and forget positions that are padding in all of them."""
        kept = torch.tensor(places, device=self.last_R.device)
        self.read.select(kept)
        self.states_RH, self.last_R = self.states_RH[kept], self.last_R[kept]
        layers = _layers(self.read)
        if layers is None or not places:
            return
        if isinstance(self.read, ByPlainDecoder):
            memory = _memory(self.read)
            start = _padding(memory.mask_R11L[:, 0, 0] == 0)
            memory.mask_R11L = memory.mask_R11L[..., start:]
        else:
            assert isinstance(self.read, ByTransformers)
            start = _padding(self.read.attention_RL != 0)
            self.read.attention_RL = self.read.attention_RL[:, start:]
        if start:
            for layer in layers:
                layer.trim(start)

    def step(self, tokens_R: Tensor) -> None:
        """Append a token to each row."""
        self.states_RH = self.read.step(tokens_R, self.policy.reply_positions(self.last_R, 0))
        self.last_R = self.last_R + 1


def _layers(read: Reader) -> list[GrowingLayer] | None:
    """Return the layers of a reader's cache; None if rows cannot join it."""
    if isinstance(read, ByPlainDecoder):
        if isinstance(read.memory, WholeRows):
            return read.memory.layers
        return None
    if not isinstance(read, ByTransformers):
        return None
    layers = [one for one in read.cache.layers if isinstance(one, GrowingLayer)]
    if len(layers) == len(read.cache.layers):
        return layers
    return None


def _memory(read: Reader) -> WholeRows:
    assert isinstance(read, ByPlainDecoder) and isinstance(read.memory, WholeRows)
    return read.memory


def _cat(masks: Sequence[Tensor], hidden: float) -> Tensor:
    """Return the rows of masks below each other, aligned at their ends."""
    length = max(mask.shape[-1] for mask in masks)
    return torch.cat([pad(mask, (length - mask.shape[-1], 0), value=hidden) for mask in masks])


def _padding(sees_RL: Tensor) -> int:
    """Return the number of positions before the first that some row sees."""
    return int(sees_RL.any(0).int().argmax())
