"""The hidden states of one more token in each row of a decoding batch.

A plain decoder is stepped through here (`plain_decoder`), everything else by transformers. Which of the two a model is
shows in its first token, which is computed both ways.

Axes: R rows, H hidden features, L positions.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache

from rl_core.models.packed_weights import Packed
from rl_core.rollout.plain_decoder import PlainDecoder, plain_decoder

ALIKE = 1e-3
"""Relative difference up to which hidden states are the same."""
_is_plain: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""What was found out about models."""


class NextStates:
    """Steps of one batch.

    Args: model: of transformers, without its head. cache: after the prefill and `grow`. packed: products of its layers.
    sees_all: whether a token sees all of its row.
    """

    def __init__(self, model: Any, cache: Cache, packed: Packed, *, sees_all: bool) -> None:
        self.model, self.cache = model, cache
        self.mask_format = _mask_format(model, cache) if sees_all else None
        may_be_plain = self.mask_format is not None and _is_plain.get(model, True)
        self.plain = plain_decoder(model, cache, packed) if may_be_plain else None

    def __call__(self, tokens_R: Tensor, positions: Tensor, attention_RL: Tensor) -> Tensor:
        """Append a token to each row. Returns: its hidden states after the last norm, [R, H].

        Args: positions: [R, 1], or with several axes [A, R, 1]. attention_RL: where a token is, the new one included.
        """
        mask = attention_RL if self.mask_format is None else _mask(attention_RL, self.mask_format)
        # Several axes of positions are for pictures.
        if self.plain is None or positions.dim() != 2:
            return self._by_transformers(tokens_R, positions, mask)
        if self.model not in _is_plain:
            return self._both_ways(self.plain, tokens_R, positions, mask)
        return self.plain.step(tokens_R, positions, mask)

    def _by_transformers(self, tokens_R: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        return self.model(
            input_ids=tokens_R[:, None],
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, -1]

    def _both_ways(self, plain: PlainDecoder, tokens_R: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        ours_RH = plain.step(tokens_R, positions, mask)
        self.cache.crop(-1)
        theirs_RH = self._by_transformers(tokens_R, positions, mask)
        difference, size = (ours_RH - theirs_RH).float().norm(), theirs_RH.float().norm()
        _is_plain[self.model] = bool(difference <= ALIKE * size)
        if not _is_plain[self.model]:
            self.plain = None
        return theirs_RH


def _mask_format(model: Any, cache: Cache) -> torch.dtype | None:
    """Of a mask made here where that makes attention quicker than what transformers makes of a padding mask.

    For rows without padding that is none, and a CPU then repeats keys and values for every head that shares them.
    """
    first: Any = cache.layers[0]
    keys = first.keys
    return keys.dtype if keys.is_cpu and model.config._attn_implementation.startswith("sdpa") else None


def _mask(attention_RL: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of one token of each row, [R, 1, 1, L]."""
    mask_RL = torch.zeros_like(attention_RL, dtype=dtype).masked_fill_(attention_RL == 0, float("-inf"))
    return mask_RL[:, None, None]
