"""KV cache of a decoding batch, and attention of its next token over it.

Replies to one prompt see the same prompt keys. If these are many they are stored once
(`SharedPrompts`): siblings query them together, their own keys row by row, and both results are
combined by the normalisers of the two softmaxes (arXiv 2402.05099). If they are few, each row's
keys are contiguous (`WholeRows`), which takes one call.

Axes: P prompts, R rows (those of a prompt adjacent), S seats for the rows of a prompt, K key heads,
G query heads of each, D features of a head, L positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from rl_core.models.decoding.growing_cache import FilledLayer, GrowingLayer

if TYPE_CHECKING:
    pass

SAVED_KEYS = 48
"""Mean number of prompt keys saved per row from which on siblings share them."""
_attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
"""Operation that returns scaled_dot_product_attention and the logarithm of its softmax's
normaliser."""


def memory_of(
    layers: list[FilledLayer], counts_P: Tensor, attention_PL: Tensor
) -> WholeRows | SharedPrompts:
    """Return the cache for the given numbers of replies to each prompt.

    Args: layers: `DynamicLayer`s of a cache after the prefill, on a CPU; they are consumed.
    attention_PL: mask of tokens, padding first.
    """
    num_rows = int(counts_P.sum())
    shares = (num_rows - len(counts_P)) * attention_PL.shape[1] >= SAVED_KEYS * num_rows
    return (SharedPrompts if shares else WholeRows)(layers, counts_P, attention_PL)


class WholeRows:
    """Contiguous keys and values of each row, the prompt's first."""

    def __init__(self, layers: list[FilledLayer], counts_P: Tensor, attention_PL: Tensor) -> None:
        self.mask_R11L = attention_mask(attention_PL, layers[0].keys.dtype).repeat_interleave(
            counts_P, 0
        )
        self.layers: list[GrowingLayer] = []
        while layers:
            self.layers.append(GrowingLayer(layers.pop(0), counts_P))

    def begin(self) -> None:
        """Extend every row by one token."""
        self.mask_R11L = pad(self.mask_R11L, (0, 1))

    def attend(
        self, layer: int, query_RKGD: Tensor, key_RKD: Tensor, value_RKD: Tensor, scale: float
    ) -> Tensor:
        """Add the token's keys and values. Returns: its attention result, [R, K, G, D]."""
        keys_RKLD, values_RKLD = self.layers[layer].update(
            key_RKD[:, :, None], value_RKD[:, :, None]
        )
        return scaled_dot_product_attention(
            query_RKGD, keys_RKLD, values_RKLD, self.mask_R11L, scale=scale
        )

    def select(self, rows: Tensor) -> None:
        """Keep these rows, ascending."""
        self.mask_R11L = self.mask_R11L[rows]
        for layer in self.layers:
            layer.batch_select_indices(rows)


class SharedPrompts:
    """Keys and values of each prompt, stored once, and those of the replies row by row."""

    def __init__(self, layers: list[FilledLayer], counts_P: Tensor, attention_PL: Tensor) -> None:
        self.mask_P11L = attention_mask(attention_PL, layers[0].keys.dtype)
        self.siblings = Siblings.of(counts_P)
        self.prompts: list[tuple[Tensor, Tensor]] = []
        self.layers: list[GrowingLayer] = []
        while layers:
            layer = layers.pop(0)
            self.prompts.append((layer.keys, layer.values))
            self.layers.append(GrowingLayer(layer, counts_P, from_start=False))

    def begin(self) -> None:
        """Extend every row by one token."""

    def attend(
        self, layer: int, query_RKGD: Tensor, key_RKD: Tensor, value_RKD: Tensor, scale: float
    ) -> Tensor:
        """Add the token's keys and values. Returns: its attention result, [R, K, G, D]."""
        own = self.layers[layer].update(key_RKD[:, :, None], value_RKD[:, :, None])
        seen_RKGD, normaliser_RKG = _attend(query_RKGD, *own, 0.0, False, scale=scale)
        asked_PKQD = self.siblings.together(query_RKGD)
        there_PKQD, theirs_PKQ = _attend(
            asked_PKQD, *self.prompts[layer], 0.0, False, attn_mask=self.mask_P11L, scale=scale
        )
        there_RKGD = self.siblings.apart(there_PKQD, query_RKGD.shape[2])
        theirs_RKG1 = self.siblings.apart(theirs_PKQ[..., None], query_RKGD.shape[2])
        share_RKG1 = (theirs_RKG1 - normaliser_RKG[..., None]).sigmoid_()
        return torch.lerp(seen_RKGD, there_RKGD, share_RKG1.to(query_RKGD.dtype))

    def select(self, rows: Tensor) -> None:
        """Keep these rows, ascending."""
        prompts, self.siblings = self.siblings.select(rows)
        if len(prompts) < len(self.mask_P11L):
            self.mask_P11L = self.mask_P11L[prompts]
            self.prompts = [(keys[prompts], values[prompts]) for keys, values in self.prompts]
        for layer in self.layers:
            layer.batch_select_indices(rows)


@dataclass(frozen=True)
class Siblings:
    """Rows of each prompt in a fixed number of seats, some of which are empty."""

    counts_P: Tensor
    """Number of rows of each prompt."""
    seat_R: Tensor
    """Seat of each row."""
    row_of_seat: Tensor
    """Row of each seat, [P * S]; any row for an empty seat."""
    is_full: bool

    @classmethod
    def of(cls, counts_P: Tensor) -> Siblings:
        """Return the seats of rows in order."""
        seats = int(counts_P.max())
        taken_PS = torch.arange(seats, device=counts_P.device) < counts_P[:, None]
        seat_R = taken_PS.flatten().nonzero()[:, 0]
        row_of_seat = (taken_PS.flatten().cumsum(0) - 1).clamp_min(0)
        return cls(counts_P, seat_R, row_of_seat, bool(taken_PS.all()))

    def together(self, states_RKGD: Tensor) -> Tensor:
        """Return one matrix for all rows of a prompt, [P, K, S * G, D]."""
        states = states_RKGD if self.is_full else states_RKGD.index_select(0, self.row_of_seat)
        return states.unflatten(0, (len(self.counts_P), -1)).transpose(1, 2).flatten(2, 3)

    def apart(self, states_PKQD: Tensor, num_queries: int) -> Tensor:
        """Convert back to rows, [R, K, G, D]. Args: num_queries: G."""
        states = states_PKQD.unflatten(2, (-1, num_queries)).transpose(1, 2).flatten(0, 1)
        if self.is_full:
            return states
        return states.index_select(0, self.seat_R)

    def select(self, rows: Tensor) -> tuple[Tensor, Siblings]:
        """Keep these rows, ascending. Returns: the prompts that still have rows, and their rows'
        seats."""
        numbers_P = torch.arange(len(self.counts_P), device=rows.device)
        counts_P = torch.bincount(
            numbers_P.repeat_interleave(self.counts_P)[rows], minlength=len(numbers_P)
        )
        prompts = counts_P.nonzero()[:, 0]
        return prompts, Siblings.of(counts_P[prompts])


def attention_mask(attention_RL: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the term to add to the scores of one token of each row, [R, 1, 1, L]. Args:
    attention_RL: mask of tokens."""
    mask_RL = torch.zeros_like(attention_RL, dtype=dtype).masked_fill_(
        attention_RL == 0, float("-inf")
    )
    return mask_RL[:, None, None]
