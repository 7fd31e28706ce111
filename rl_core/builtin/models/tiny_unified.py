"""The embedded unified model: 2.8 million parameters that read an odd prompt, write a plan, and
draw the digit.

Decoder and transformer have the real classes: a Llama of three layers over bytes, in which the
words of a plan are whole tokens, and the SD3 transformer of `rl_core.builtin.models.tiny_sd3`,
whose autoencoder it shares. Both are trained together by
`rl_core.builtin.models.tiny_unified_warm_up`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rl_core.builtin.data.digit_prompts import NAMES
from rl_core.builtin.models.tiny_sd3 import PATCH, SCALE, SIDE, pixel_codec

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

    from rl_core.models.unified.pipeline import CompactUnifiedPipeline

WIDTH = 128
"""Width of the decoder's hidden states, which condition the transformer."""
CONTEXT_LENGTH = 8
"""Number of hidden states that condition the transformer: those of the plan, and a few of the
prompt."""
PLAN = "the digit {}"
"""Text of a plan, with `{}` for the digit's name."""
PAD, ASK, END = "<|pad|>", "<|plan|>", "<|end|>"
TEMPLATE = (
    "{% for message in messages %}{{ message['content'] }}"
    f"{{{{ '{END}' if message['role'] == 'assistant' else '{ASK}' }}}}"
    "{% endfor %}"
)
"""Chat template: a prompt ends in a token that asks for the plan, a plan in a token that ends
it."""


def make_pipeline(seed: int = 0) -> CompactUnifiedPipeline:
    """Return the untrained pipeline, in float32."""
    from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import (
        FlowMatchEulerDiscreteScheduler,
    )

    from rl_core.models.unified.pipeline import CompactUnifiedPipeline

    tokenizer = make_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        decoder = _decoder(tokenizer)
        transformer = SD3Transformer2DModel(
            sample_size=SIDE // SCALE,
            patch_size=PATCH,
            in_channels=1,
            out_channels=1,
            num_layers=4,
            attention_head_dim=32,
            num_attention_heads=4,
            caption_projection_dim=128,
            joint_attention_dim=WIDTH,
            pooled_projection_dim=WIDTH,
            pos_embed_max_size=SIDE // SCALE,
            qk_norm="rms_norm",
        )
        vae = pixel_codec()
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
    return CompactUnifiedPipeline(
        decoder, tokenizer, transformer, vae, scheduler, context_length=CONTEXT_LENGTH
    )


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer, so that any prompt can be decoded again, with the plan's words
    as whole tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = [PAD, ASK, END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    learned = Tokenizer(
        models.BPE(vocab={piece: index for index, piece in enumerate(alphabet)}, merges=[])
    )
    learned.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learned.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    words = [*NAMES, *PLAN.format("").split()]
    learned.add_tokens([AddedToken(word, single_word=True, normalized=False) for word in words])
    return PreTrainedTokenizerFast(
        tokenizer_object=learned,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[ASK],
        chat_template=TEMPLATE,
    )


def _decoder(tokenizer: Any) -> LlamaForCausalLM:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    decoder = LlamaForCausalLM(config)
    # The family's own start, 0.02, is for widths where a token's vector is longer than a layer's
    # answer to it.
    nn.init.normal_(decoder.model.embed_tokens.weight, std=WIDTH**-0.5)
    return decoder
