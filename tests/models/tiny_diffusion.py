"""Tiny diffusers pipelines of real classes, made from configs: random weights, a tokenizer trained
on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

WORDS = (
    "a photo of the digit zero one two three four five six seven eight nine 0 1 2 3 4 5 6 7 8 9 "
    "red green blue drawn by hand , . an image picture drawing scan number numeral figure "
    "handwritten written in white ink on black paper"
)
START, END = "<|startoftext|>", "<|endoftext|>"
CLIP_LENGTH = 16


def tiny_sd3(folder: Path, seed: int = 0) -> Path:
    """A StableDiffusion3Pipeline folder: 32 x 32 pictures from 4 latent channels of 16 x 16, no
    third encoder."""
    import diffusers

    library: Any = diffusers  # its lazy module hides its classes from the type checker
    tokenizer = clip_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        transformer = library.SD3Transformer2DModel(
            sample_size=16,
            patch_size=2,
            in_channels=4,
            out_channels=4,
            num_layers=2,
            attention_head_dim=8,
            num_attention_heads=4,
            caption_projection_dim=32,
            joint_attention_dim=32,
            pooled_projection_dim=32,
            pos_embed_max_size=16,
        )
        # A fresh last layer is zero, and with it the velocity.
        torch.nn.init.normal_(transformer.proj_out.weight, std=0.1)
        vae = library.AutoencoderKL(
            block_out_channels=(8, 8),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            layers_per_block=1,
            latent_channels=4,
            norm_num_groups=4,
            use_quant_conv=False,
            use_post_quant_conv=False,
            shift_factor=0.06,
            scaling_factor=1.5,
        )
        encoders = [clip_text_encoder(len(tokenizer)) for _ in range(2)]
    pipeline = library.StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=library.FlowMatchEulerDiscreteScheduler(shift=3.0),
        vae=vae,
        text_encoder=encoders[0],
        tokenizer=tokenizer,
        text_encoder_2=encoders[1],
        tokenizer_2=tokenizer,
        text_encoder_3=None,
        tokenizer_3=None,
    )
    pipeline.save_pretrained(folder)
    return folder


def clip_tokenizer() -> Any:
    """Whole words of `WORDS`, put together from the left; others in letters. The same every
    time."""
    from tokenizers import pre_tokenizers
    from transformers import CLIPTokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges: dict[tuple[str, str], None] = {}
    for word in WORDS.split():
        pieces = [*word[:-1], f"{word[-1]}</w>"]
        for end in range(1, len(pieces)):
            merges["".join(pieces[:end]), pieces[end]] = None
    pieces = [START, END, *letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges)]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    return CLIPTokenizer(vocab=vocabulary, merges=list(merges), model_max_length=CLIP_LENGTH)


def clip_text_encoder(num_words: int) -> Any:
    """A CLIP text encoder of two layers."""
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=num_words,
        hidden_size=16,
        intermediate_size=32,
        projection_dim=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=CLIP_LENGTH,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    return CLIPTextModelWithProjection(config)
