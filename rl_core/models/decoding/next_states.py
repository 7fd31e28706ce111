"""Hidden states of one more token in each row of a decoding batch.

A plain decoder is stepped by this project (`plain_decoder`), on a GPU by graphs of its steps
(`graphed_steps`), everything else by transformers. A probe token after the model's first prompts,
computed both ways, decides which.

Axes: P prompts, R rows, H hidden features, L positions.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from rl_core.kernels import Packed
from rl_core.models.backbone import attention_of, taken_by
from rl_core.models.decoding.decoder_memory import WholeRows, attention_mask, memory_of
from rl_core.models.decoding.graphed_steps import GraphedSteps, can_be_graphed
from rl_core.models.decoding.growing_cache import (
    cache_argument,
    grow,
    is_plain,
    plain_layers,
    take_rows,
)
from rl_core.models.decoding.plain_decoder import PlainDecoder, layer_by_layer, plain_decoder
from rl_core.models.exact import is_exact

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ALIKE, ALIKE_ROUNDED = 1e-3, 5e-2
"""Relative tolerance of hidden states; in bfloat16 on a GPU, where sums have another order, the
larger one."""
_is_plain_decoder: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Findings about models."""


def next_states(
    model: PreTrainedModel,
    cache: Cache,
    counts_P: Tensor,
    attention_PL: Tensor,
    packed: Packed,
    probe_P: tuple[Tensor, Tensor],
    *,
    graphs: bool,
    joins: bool = False,
) -> ByPlainDecoder | GraphedSteps | ByTransformers:
    """Return the steps of one batch.

    Args: model: of transformers, without its head. cache: cache after the prefill; it is consumed.
    counts_P: number of replies to each prompt. attention_PL: mask of tokens. packed: products of
    its layers. probe_P: any token of each prompt, and its positions, [P, 1] or with several axes
    [A, P, 1]. graphs: allow recording of steps on a GPU. joins: keep each row's keys whole, so that
    other rows can join them.
    """
    if is_exact(model):
        return ByTransformers(model, cache, counts_P, attention_PL)
    # Several axes of positions are for pictures.
    may_be_plain = _is_plain_decoder.get(model, True) and is_plain(cache) and probe_P[1].dim() == 2
    on_gpu = counts_P.device.type == "cuda"
    plain = None
    if may_be_plain:
        plain = plain_decoder(model, layer_by_layer if on_gpu else packed.get)
    if plain is None or (on_gpu and not (graphs and can_be_graphed(plain))):
        return ByTransformers(model, cache, counts_P, attention_PL)
    if model not in _is_plain_decoder:
        _is_plain_decoder[model] = _says_the_same(plain, cache, attention_PL, probe_P)
    if not _is_plain_decoder[model]:
        return ByTransformers(model, cache, counts_P, attention_PL)
    if on_gpu:
        return GraphedSteps(plain, cache, counts_P, attention_PL)
    return ByPlainDecoder(plain, cache, counts_P, attention_PL, joins=joins)


class ByPlainDecoder:
    """Reads tokens through this project's decoder loop."""

    def __init__(
        self,
        plain: PlainDecoder,
        cache: Cache,
        counts_P: Tensor,
        attention_PL: Tensor,
        *,
        joins: bool = False,
    ) -> None:
        memory = WholeRows if joins else memory_of
        self.plain, self.memory = plain, memory(plain_layers(cache), counts_P, attention_PL)

    def step(self, tokens_R: Tensor, positions_R1: Tensor) -> Tensor:
        """Append a token to each row. Returns: its hidden states after the last norm, [R, H]."""
        return self.plain.step(tokens_R, positions_R1, self.memory)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, ascending."""
        self.memory.select(rows)


class ByTransformers:
    """Reads tokens through the model unchanged."""

    def __init__(
        self, model: PreTrainedModel, cache: Cache, counts_P: Tensor, attention_PL: Tensor
    ) -> None:
        self.model, self.cache, self.cache_argument = model, cache, cache_argument(model)
        self.mask_format = _mask_format(model, cache) if is_plain(cache) else None
        self.attention_RL = attention_PL.repeat_interleave(counts_P, 0)
        grow(cache, counts_P)

    def step(self, tokens_R: Tensor, positions: Tensor) -> Tensor:
        """Append a token to each row. Returns: its hidden states after the last norm, [R, H].

        Args: positions: [R, 1], or with several axes [A, R, 1].
        """
        self.attention_RL = nn.functional.pad(self.attention_RL, (0, 1), value=1)
        mask = self.attention_RL
        inputs = {
            "input_ids": tokens_R[:, None],
            "attention_mask": mask
            if self.mask_format is None
            else attention_mask(mask, self.mask_format),
            "position_ids": positions,
        }
        output = self.model(
            **taken_by(self.model, inputs), use_cache=True, **{self.cache_argument: self.cache}
        )
        return output.last_hidden_state[:, -1]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, ascending."""
        self.attention_RL = self.attention_RL[rows]
        for layer in self.cache.layers:
            take_rows(layer, rows)


class ByRecomputing:
    """Reads tokens through the model unchanged, over the whole row every time, for models whose
    cache cannot be used.

    Args: ids_RL, attention_RL: the prompts, padding first. together: whether the model computes
    rows of a batch as it computes each by itself.
    """

    def __init__(
        self, model: PreTrainedModel, ids_RL: Tensor, attention_RL: Tensor, *, together: bool
    ) -> None:
        self.model, self.ids_RL, self.attention_RL, self.together = (
            model,
            ids_RL,
            attention_RL,
            together,
        )

    def step(self, tokens_R: Tensor, positions: Tensor) -> Tensor:
        """Append a token to each row. Returns: its hidden states after the last norm, [R, H]."""
        self.ids_RL = torch.cat([self.ids_RL, tokens_R[:, None]], 1)
        self.attention_RL = nn.functional.pad(self.attention_RL, (0, 1), value=1)
        if self.together:
            rows = [slice(None)]
        else:
            rows = [slice(row, row + 1) for row in range(len(self.ids_RL))]
        return torch.cat(
            [self._last_states(self.ids_RL[some], self.attention_RL[some]) for some in rows]
        )

    def _last_states(self, ids_RL: Tensor, attention_RL: Tensor) -> Tensor:
        inputs = {
            "input_ids": ids_RL,
            "attention_mask": attention_RL,
            "position_ids": (attention_RL.cumsum(-1) - 1).clamp_min(0),
        }
        return self.model(**taken_by(self.model, inputs), use_cache=False).last_hidden_state[:, -1]

    def select(self, rows: Tensor) -> None:
        """Keep these rows, ascending."""
        self.ids_RL, self.attention_RL = self.ids_RL[rows], self.attention_RL[rows]


def _says_the_same(
    plain: PlainDecoder, cache: Cache, attention_PL: Tensor, probe_P: tuple[Tensor, Tensor]
) -> bool:
    """Return True if both ways give the same states for a token after each prompt. The cache stays
    unchanged."""
    once_P = torch.ones_like(attention_PL[:, 0])
    ours_PH = plain.step(*probe_P, WholeRows(list(plain_layers(cache)), once_P, attention_PL))
    theirs_PH = ByTransformers(plain.model, copy.deepcopy(cache), once_P, attention_PL).step(
        *probe_P
    )
    difference, size = (ours_PH - theirs_PH).float().norm(), theirs_PH.float().norm()
    is_rounded = theirs_PH.dtype is torch.bfloat16 and not theirs_PH.is_cpu
    return bool(difference <= (ALIKE_ROUNDED if is_rounded else ALIKE) * size)


def _mask_format(model: PreTrainedModel, cache: Cache) -> torch.dtype | None:
    """Return the format of an attention mask made here, if that makes attention faster than
    transformers' padding mask.

    For rows without padding there is none, and a CPU then repeats keys and values for every head
    that shares them. Families that add something to a mask of their own (ALiBi) get the padding
    mask.
    """
    keys = plain_layers(cache)[0].keys
    makes_own = not getattr(model, "_supports_attention_backend", False)
    is_sdpa = attention_of(model).startswith("sdpa")
    if keys.is_cpu and is_sdpa and not makes_own:
        return keys.dtype
    return None
