"""Type of the keyword arguments of a language model's forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Required, TypedDict

if TYPE_CHECKING:
    from torch import Tensor

    from rl_core.kernels import Rectangles


class WordInputs(TypedDict, total=False):
    """The tokens of B rows of L, as words or as their embeddings."""

    input_ids: Tensor
    inputs_embeds: Tensor
    """Embeddings [B, L, H] in place of `input_ids`."""


class ModelInputs(WordInputs, total=False):
    """Keyword arguments of a transformers model's forward: B rows of L tokens, or packed rows as
    one row."""

    attention_mask: Tensor | None
    position_ids: Required[Tensor]
    """[B, L], or with several axes [A, B, L]."""
    cu_seq_lens_q: Tensor
    """Bounds of packed rows."""
    cu_seq_lens_k: Tensor
    max_length_q: int
    max_length_k: int
    rectangles: Rectangles
    """Attention of rows that share their prompts; see `shared_prompts`."""
    mm_encoder_outputs: Mapping[str, object]
    """Encoded images, in transformers' own form."""
