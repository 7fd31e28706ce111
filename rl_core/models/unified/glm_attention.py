"""Attention of GLM-Image over texts of several lengths.

diffusers converts its mask to a float, which attention adds to the scores: padding is then still
seen, only less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from diffusers.models.embeddings import apply_rotary_emb
from diffusers.models.transformers.transformer_glm_image import GlmImageAttnProcessor
from torch import Tensor
from torch.nn.functional import pad

if TYPE_CHECKING:
    pass

if TYPE_CHECKING:
    from diffusers.models.transformers.transformer_glm_image import GlmImageLayerKVCache


class MaskedAttention(GlmImageAttnProcessor):
    """Attention processor that hides the text's padding under a mask [B, L]."""

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        image_rotary_emb: tuple[Tensor, Tensor] | None = None,
        kv_cache: GlmImageLayerKVCache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return the attention of image and text tokens, in this order."""
        if attention_mask is None:
            return super().__call__(
                attn, hidden_states, encoder_hidden_states, None, image_rotary_emb, kv_cache
            )
        num_text, num_picture = encoder_hidden_states.shape[1], hidden_states.shape[1]
        tokens = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        query, key, value = (
            project(tokens).unflatten(2, (attn.heads, -1))
            for project in (attn.to_q, attn.to_k, attn.to_v)
        )
        query, key = (
            norm(one).to(tokens.dtype) for norm, one in ((attn.norm_q, query), (attn.norm_k, key))
        )
        query, key = (_turned(one, num_text, image_rotary_emb) for one in (query, key))
        mixed = dispatch_attention_fn(
            query,
            key,
            value,
            attn_mask=pad(attention_mask.bool(), (0, num_picture), value=True)[:, None, None],
            backend=self._attention_backend,
            parallel_config=self._parallel_config,
        )
        for layer in attn.to_out:
            mixed = layer(mixed.flatten(2) if mixed.ndim == 4 else mixed)
        text, picture = mixed.to(tokens.dtype).split([num_text, num_picture], dim=1)
        return picture, text


def _turned(tokens: Tensor, num_text: int, rotary: Any) -> Tensor:
    """Apply rotary positions, which only image tokens have."""
    if rotary is None:
        return tokens
    text, picture = tokens.split([num_text, tokens.shape[1] - num_text], dim=1)
    turned: Any = apply_rotary_emb(picture, rotary, sequence_dim=1, use_real_unbind_dim=-2)
    return torch.cat([text, turned], dim=1)
