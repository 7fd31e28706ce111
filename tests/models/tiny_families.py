"""Tiny pipelines of the families that make pictures, but SD3, and what they share with those that
make videos.

The classes are the real ones, weights random, tokenizers made on the spot. VAEs shrink sides by 8
(FLUX.2) or 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

WORDS = (
    "a photo of the digit zero one two three four five six seven eight nine red green blue drawn "
    "by hand"
)
PAD, END = "<pad>", "</s>"
VISION = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>")
CHAT = (
    "{% for message in messages %}{{ message['role'] }} {% if message['content'] is string %}{{ "
    "message['content'] }}{% else %}{% for part in message['content'] %}{{ part['text'] }}{% "
    "endfor %}{% endif %} {% endfor %}"
)
STATISTICS = {"latents_mean": [0.3, -0.2, 0.1, -0.4], "latents_std": [1.2, 0.8, 1.5, 0.9]}
TEXT = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}


def made(make: Callable[[], Any], seed: int = 0) -> Any:
    """The same pipeline for the same seed, frozen and quiet."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = make()
    for part in pipeline.components.values():
        if isinstance(part, torch.nn.Module):
            part.requires_grad_(False).eval()
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def tokenizer(*texts: str) -> Any:
    """Words and marks of `WORDS` and these texts as wholes; what is unknown reads as padding. Ends
    each text."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for text in (WORDS, *texts) for word in re.findall(r"\w+|[^\w\s]+", text)})
    pieces = list(dict.fromkeys([PAD, END, *VISION, *words]))
    backend = Tokenizer(
        models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token=PAD)
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()  # type: ignore[assignment]
    backend.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=f"$A {END}", special_tokens=[(END, pieces.index(END))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=PAD,
        eos_token=END,
        additional_special_tokens=list(VISION),
        padding_side="right",
        model_max_length=512,
        chat_template=CHAT,
    )


def library() -> Any:
    """diffusers, whose lazy module hides its classes from the type checker."""
    import diffusers

    return diffusers


def qwen3(words: Any, layers: int) -> Any:
    """A Qwen3 text encoder."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(vocab_size=len(words), num_hidden_layers=layers, **TEXT))


def picture_vae(levels: int) -> dict[str, Any]:
    """A VAE's settings. Args: levels: each but the first halves the sides."""
    return {
        "block_out_channels": (8,) * levels,
        "down_block_types": ("DownEncoderBlock2D",) * levels,
        "up_block_types": ("UpDecoderBlock2D",) * levels,
        "layers_per_block": 1,
        "latent_channels": 4,
        "norm_num_groups": 4,
    }


def flux2_parts(embeds: int, *, guidance: bool) -> dict[str, Any]:
    """Transformer, VAE and scheduler of FLUX.2. Args: embeds: width of a prompt's embedding."""
    transformer = library().Flux2Transformer2DModel(
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=embeds,
        timestep_guidance_channels=16,
        axes_dims_rope=(4, 4, 4, 4),
        guidance_embeds=guidance,
    )
    # Hundreds of padded places share the attention; as drawn, a prompt is hardly felt.
    transformer.context_embedder.weight.data.mul_(20)
    vae = library().AutoencoderKLFlux2(**picture_vae(4))
    # As an untrained VAE's latents are spread: next to nothing.
    vae.bn.running_mean.normal_(std=0.05)
    vae.bn.running_var.uniform_(0.0005, 0.002)
    scheduler = library().FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    return {"transformer": transformer, "vae": vae, "scheduler": scheduler}


def flux2_klein() -> Any:
    """Layers 9, 18 and 27 of the text encoder are read."""
    words = tokenizer("user assistant")
    parts = flux2_parts(48, guidance=False)
    return library().Flux2KleinPipeline(text_encoder=qwen3(words, 27), tokenizer=words, **parts)


def flux2() -> Any:
    """Layers 10, 20 and 30 of the text encoder are read; the processor wants torchvision, its
    tokenizer will do."""
    from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    words = tokenizer("user system", SYSTEM_MESSAGE)
    text = {**TEXT, "model_type": "mistral", "vocab_size": len(words), "num_hidden_layers": 30}
    vision = {
        "model_type": "pixtral",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
    }
    config = Mistral3Config(
        text_config=text, vision_config={**vision, "num_attention_heads": 2}, image_token_index=3
    )
    encoder = Mistral3ForConditionalGeneration(config)
    return library().Flux2Pipeline(
        text_encoder=encoder, tokenizer=words, **flux2_parts(48, guidance=True)
    )


def qwen2_5_vl(words: Any) -> Any:
    """A Qwen2.5-VL whose pictures are patches of 4 x 4 pixels, four to a token."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "patch_size": 4,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "window_size": 16,
        "fullatt_block_indexes": [1],
        "out_hidden_size": 16,
    }
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    text = {**TEXT, "vocab_size": len(words), "num_hidden_layers": 2, "rope_parameters": rope}
    image, video, start = (words.convert_tokens_to_ids(VISION[index]) for index in (1, 3, 0))
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            vision_config=vision,
            text_config=text,
            image_token_id=image,
            video_token_id=video,
            vision_start_token_id=start,
        )
    )


def qwen_parts(words: Any) -> dict[str, Any]:
    """What the two pipelines of Qwen-Image have in common."""
    transformer = library().QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=16,
        axes_dims_rope=(4, 6, 6),
    )
    vae = library().AutoencoderKLQwenImage(
        base_dim=8,
        z_dim=4,
        dim_mult=[1, 1],
        num_res_blocks=1,
        temperal_downsample=[False],
        **STATISTICS,
    )
    scheduler = library().FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, max_shift=0.9)
    parts = {"transformer": transformer, "vae": vae, "scheduler": scheduler}
    return {**parts, "text_encoder": qwen2_5_vl(words), "tokenizer": words}


def qwen_image() -> Any:
    """The instruction around the prompt is cut off after 34 tokens."""
    words = tokenizer(
        "im_start im_end system user assistant Describe the image by detailing the color shape "
        "size texture quantity text spatial relationships of the objects and background"
    )
    return library().QwenImagePipeline(**qwen_parts(words))


class QwenProcessor:
    """What Qwen2VLProcessor does with text and pictures; the class itself wants torchvision for
    videos."""

    def __init__(self, images: Any, words: Any) -> None:
        self.images, self.words = images, words

    def __call__(
        self, *, text: list[str], images: list[Any], padding: bool, return_tensors: str
    ) -> Any:
        """Tokens, with as many picture tokens as the pictures take, and the pictures' patches."""
        pictures = self.images(images, return_tensors=return_tensors)
        spaces = [
            int(grid.prod()) // self.images.merge_size**2 for grid in pictures["image_grid_thw"]
        ]
        texts = [
            one.replace(VISION[1], VISION[1] * space)
            for one, space in zip(text, spaces, strict=True)
        ]
        pictures.update(self.words(texts, padding=padding, return_tensors=return_tensors))
        return pictures


def qwen_image_edit() -> Any:
    """The instruction around the prompt is cut off after 64 tokens."""
    from transformers import Qwen2VLImageProcessorPil

    words = tokenizer(
        "im_start im_end system user assistant Describe the key features of the input image "
        "color shape size texture objects background then explain how user s text instruction "
        "should alter or modify Generate a new that meets requirements while maintaining "
        "consistency with original where appropriate"
    )
    images = Qwen2VLImageProcessorPil(
        patch_size=4,
        temporal_patch_size=2,
        merge_size=2,
        size={"shortest_edge": 64, "longest_edge": 4096},
    )
    return library().QwenImageEditPipeline(
        processor=QwenProcessor(images, words), **qwen_parts(words)
    )


def z_image() -> Any:
    """The last hidden state but one of the text encoder is read."""
    words = tokenizer("user assistant")
    transformer = library().ZImageTransformer2DModel(
        in_channels=4,
        dim=32,
        n_layers=2,
        n_refiner_layers=1,
        n_heads=2,
        n_kv_heads=2,
        cap_feat_dim=16,
        axes_dims=[4, 6, 6],
        axes_lens=[640, 32, 32],
    )
    vae = library().AutoencoderKL(
        **picture_vae(2),
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=1.5,
        shift_factor=0.06,
    )
    return library().ZImagePipeline(
        transformer=transformer,
        vae=vae,
        scheduler=library().FlowMatchEulerDiscreteScheduler(shift=3.0),
        text_encoder=qwen3(words, 3),
        tokenizer=words,
    )
