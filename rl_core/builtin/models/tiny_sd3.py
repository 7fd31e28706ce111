r"""The embedded diffusion model: a Stable Diffusion 3 (arXiv 2403.03206) of 2.6 million parameters
that draws digits.

Every part has the real class: two CLIP text encoders (no third one), a byte-level BPE trained on
the prompts of `rl_core.builtin.data.digit_prompts`, an SD3 transformer, and an `AutoencoderKL`.
Pictures are 32 x 32 pixels, latents 8 x 8, one for each pixel of scikit-learn's digits, so the
autoencoder has nothing to learn: its weights are constructed (`pixel_codec`). Text encoders and
transformer are trained together by `rl_core.builtin.models.tiny_sd3_warm_up`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rl_core.builtin.data.digit_prompts import digit_prompts

if TYPE_CHECKING:
    from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
    from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import (
        StableDiffusion3Pipeline,
    )
    from transformers import CLIPTextModelWithProjection, CLIPTokenizer

SIDE = 32
"""Side of a picture in pixels."""
SCALE = 4
"""Pixels of a picture per latent pixel, along each side."""
PATCH = 4
"""Side of a token in latent pixels; with four tokens, training takes a third of the time of
sixteen."""
TEXT_LENGTH = 16
"""Tokens of a prompt, including start and end."""
TEXT_WIDTH = 64
VOCABULARY = 800
START, END = "<|startoftext|>", "<|endoftext|>"
MEAN, DEVIATION = -0.39, 0.75
"""Mean and standard deviation of the digits' pixels in -1..1."""
HEADROOM = 1e3
"""Ratio of the pixel codec's constant channels to the largest pixel."""


def make_pipeline(seed: int = 0) -> StableDiffusion3Pipeline:
    """Return the untrained pipeline, in float32."""
    import diffusers

    library: Any = diffusers  # its lazy module hides its classes from the type checker
    tokenizer = make_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoders = [_text_encoder(tokenizer, activation) for activation in ("quick_gelu", "gelu")]
        transformer = library.SD3Transformer2DModel(
            sample_size=SIDE // SCALE,
            patch_size=PATCH,
            in_channels=1,
            out_channels=1,
            num_layers=4,
            attention_head_dim=32,
            num_attention_heads=4,
            caption_projection_dim=128,
            joint_attention_dim=2 * TEXT_WIDTH,
            pooled_projection_dim=2 * TEXT_WIDTH,
            pos_embed_max_size=SIDE // SCALE,
            qk_norm="rms_norm",
        )
        vae = pixel_codec()
    pipeline = library.StableDiffusion3Pipeline(
        transformer=transformer,
        scheduler=library.FlowMatchEulerDiscreteScheduler(shift=1.0),
        vae=vae,
        text_encoder=encoders[0],
        tokenizer=tokenizer,
        text_encoder_2=encoders[1],
        tokenizer_2=tokenizer,
        text_encoder_3=None,
        tokenizer_3=None,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def make_tokenizer() -> CLIPTokenizer:
    """Return a CLIP tokenizer with the prompts' words as whole tokens, which spells everything else
    out."""
    from tokenizers import pre_tokenizers, trainers
    from transformers import CLIPTokenizer

    learner = CLIPTokenizer().backend_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[START, END],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    learner.train_from_iterator([prompt.text for prompt in digit_prompts("train")], trainer)
    learned = json.loads(learner.to_str())["model"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = [START, END, *alphabet, *(f"{letter}</w>" for letter in alphabet), *learned["vocab"]]
    vocabulary = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    merges: Any = [tuple(pair) for pair in learned["merges"]]
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=TEXT_LENGTH)


def _text_encoder(tokenizer: Any, activation: str) -> CLIPTextModelWithProjection:
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    config = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=TEXT_WIDTH,
        intermediate_size=4 * TEXT_WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        projection_dim=TEXT_WIDTH,
        max_position_embeddings=TEXT_LENGTH,
        hidden_act=activation,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    encoder = CLIPTextModelWithProjection(config)
    # The family's own start, 0.02, is for widths where a token's vector is longer than a layer's
    # answer to it.
    for embedding in (module for module in encoder.modules() if isinstance(module, nn.Embedding)):
        nn.init.normal_(embedding.weight, std=0.5)
    return encoder


def pixel_codec() -> AutoencoderKL:
    """Return an AutoencoderKL whose latent is the picture in grey, each latent pixel the scaled
    mean of `SCALE` x `SCALE` pixels.

    Nothing else in it is lossy. Its four channels carry (x, -x, K, -K) past the group norm, whose
    statistics the constants K dominate, and past the SiLU, since silu(x) - silu(-x) = x. Residual
    branches are zero.
    """
    import diffusers

    library: Any = diffusers
    num_levels = SCALE.bit_length()
    vae = library.AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * num_levels,
        up_block_types=("UpDecoderBlock2D",) * num_levels,
        block_out_channels=(4,) * num_levels,
        layers_per_block=1,
        latent_channels=1,
        norm_num_groups=1,
        sample_size=SIDE,
        use_quant_conv=False,
        use_post_quant_conv=False,
        mid_block_add_attention=False,
        shift_factor=MEAN,
        scaling_factor=1 / DEVIATION,
    )
    with torch.no_grad():
        for name, module in vae.named_modules():
            if name.endswith("conv2"):
                nn.init.zeros_(module.weight)
                nn.init.zeros_(module.bias)
            elif "samplers" in name and isinstance(module, nn.Conv2d):
                _write_resampling(module, is_mean="down" in name)
        for part in (vae.encoder, vae.decoder):
            _write_ends(part)
    return vae


def _write_resampling(convolution: nn.Conv2d, *, is_mean: bool) -> None:
    """Write weights that treat each channel separately: the mean of 2 x 2 on the way down, the
    nearest neighbour on the way up."""
    nn.init.zeros_(convolution.weight)
    assert convolution.bias is not None
    nn.init.zeros_(convolution.bias)
    for channel in range(convolution.out_channels):
        if is_mean:
            convolution.weight[channel, channel, :2, :2] = 0.25
        else:
            convolution.weight[channel, channel, 1, 1] = 1.0


def _write_ends(part: Any) -> None:
    """Write the weights into and out of (x, -x, K, -K); several input channels are averaged, an
    output is repeated."""
    nn.init.zeros_(part.conv_in.weight)
    sign = torch.tensor([1.0, -1.0, 0.0, 0.0])
    part.conv_in.weight[:, :, 1, 1] = sign[:, None] / part.conv_in.in_channels
    part.conv_in.bias.copy_(HEADROOM * torch.tensor([0.0, 0.0, 1.0, -1.0]))
    # The norm divides by the root mean square over its one group of four channels, two of which
    # hold K.
    part.conv_norm_out.weight.fill_(HEADROOM / 2**0.5)
    nn.init.zeros_(part.conv_norm_out.bias)
    nn.init.zeros_(part.conv_out.weight)
    nn.init.zeros_(part.conv_out.bias)
    is_encoder = part.conv_out.out_channels == 2
    part.conv_out.weight[: 1 if is_encoder else None, :, 1, 1] = sign
    if is_encoder:
        # The posterior's log-variance: none to speak of.
        part.conv_out.bias[1] = -30.0
