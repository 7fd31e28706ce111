"""A tiny GLM-Image of the real classes: random weights, tokenizers made on the spot, ids laid out
as in the real one.

Codes of the picture's codebook come first, then the marks of a picture's start and end, then unused
ids, then words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.models.tiny_families import STATISTICS, WORDS, library, made, picture_vae

NUM_CODES, START_ID, END_ID, NUM_VISION = 32, 32, 33, 36
GRID, PAD, IMAGE, START, END = (
    ("<sop>", "<eop>"),
    "<pad>",
    "<|image|>",
    "<|dit_token_32|>",
    "<|endoftext|>",
)
CHAT = (
    "{% for message in messages %}<|{{ message['role'] }}|>{% if message['content'] is string %}"
    "{{ message['content'] }}{% else %}{% for part in message['content'] %}{{ part['text'] }}{% "
    "endfor %}{% endif %}{% endfor %}"
)


def glm_image_folder(folder: Path) -> Path:
    """A GlmImagePipeline's folder."""
    made(glm_image).save_pretrained(folder)
    return folder


def glm_image() -> Any:
    """Sides of latents are an eighth of the picture's; a token of the transformer spans two of
    them, a code four."""
    from transformers import ByT5Tokenizer

    words = tokenizer()
    transformer = library().GlmImageTransformer2DModel(
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=2,
        text_embed_dim=16,
        time_embed_dim=16,
        condition_dim=8,
        prior_vq_quantizer_codebook_size=NUM_CODES,
    )
    # As drawn, what the transformer is told is hardly felt.
    for layer in transformer.glyph_projector.net[-1], transformer.prior_projector.net[-1]:
        layer.weight.data.mul_(5)
    scheduler = library().FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True, time_shift_type="linear", base_shift=0.25, max_shift=0.75
    )
    return library().GlmImagePipeline(
        tokenizer=ByT5Tokenizer(),
        processor=processor(words),
        text_encoder=glyph_encoder(),
        vision_language_encoder=writer(words),
        vae=library().AutoencoderKL(**picture_vae(4), **STATISTICS),
        transformer=transformer,
        scheduler=scheduler,
    )


def tokenizer() -> Any:
    """Words of `WORDS`, numbers of a grid, and marks as wholes."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    codes = [f"<|dit_token_{index}|>" for index in range(NUM_VISION)]
    marks = [PAD, END, IMAGE, *GRID, "<|user|>", "<|system|>", "<|assistant|>"]
    words = sorted({*WORDS.split(), "'", *(str(number) for number in range(70))})
    backend = Tokenizer(
        models.WordLevel(
            {piece: index for index, piece in enumerate([*codes, *marks, *words])}, unk_token=PAD
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    backend.add_special_tokens([*codes, *marks])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=PAD,
        eos_token=END,
        bos_token=START,
        extra_special_tokens={
            "image_token": IMAGE,
            "grid_bos_token": GRID[0],
            "grid_eos_token": GRID[1],
        },
        padding_side="left",
        chat_template=CHAT,
    )


def processor(words: Any) -> Any:
    """Of prompts; its pictures would be read by the PIL backend."""
    from transformers import GlmImageImageProcessorPil, GlmImageProcessor

    pictures = GlmImageImageProcessorPil(patch_size=16, merge_size=1)
    return GlmImageProcessor(image_processor=pictures, tokenizer=words, chat_template=CHAT)


def glyph_encoder() -> Any:
    """Reads the bytes of what shall be lettered."""
    from transformers import T5Config, T5EncoderModel

    return T5EncoderModel(
        T5Config(vocab_size=384, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    )


def writer(words: Any) -> Any:
    """The autoregressive model, with a vision tower and a quantiser that drawing from text does not
    use."""
    from transformers import GlmImageConfig, GlmImageForConditionalGeneration

    text = {
        "vocab_size": len(words),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "mrope_section": [1, 1, 2],
        },
        "pad_token_id": words.pad_token_id,
        "vision_vocab_size": NUM_VISION,
        "eos_token_id": END_ID,
    }
    vision = {
        "depth": 1,
        "hidden_size": 16,
        "num_heads": 2,
        "image_size": 32,
        "intermediate_size": 32,
    }
    quantiser = {"embed_dim": 8, "num_embeddings": NUM_CODES, "latent_channels": 16}
    model = GlmImageForConditionalGeneration(
        GlmImageConfig(
            text_config=text,
            vision_config=vision,
            vq_config=quantiser,
            image_token_id=words.convert_tokens_to_ids(IMAGE),
            image_start_token_id=START_ID,
            image_end_token_id=END_ID,
        )
    )
    # As drawn, the head is nearly uniform, and wrong positions would not show.
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    return model
