"""Tiny pipelines of the families that make videos: real classes, random weights. VAEs shrink sides
by 8, time by 4."""

from __future__ import annotations

from typing import Any

from tests.models.tiny_families import STATISTICS, library, tokenizer


def wan_transformer(channels: int = 4, **settings: Any) -> Any:
    """Two blocks of width 24. Args: channels: of its input."""
    return library().WanTransformer3DModel(
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=channels,
        out_channels=4,
        text_dim=16,
        freq_dim=16,
        ffn_dim=32,
        num_layers=2,
        rope_max_seq_len=32,
        **settings,
    )


def wan_parts() -> dict[str, Any]:
    """What all Wan pipelines have in common."""
    from transformers import UMT5Config, UMT5EncoderModel

    words = tokenizer()
    encoder = UMT5Config(
        vocab_size=len(words), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2
    )
    vae = library().AutoencoderKLWan(
        base_dim=4,
        z_dim=4,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        **STATISTICS,
    )
    scheduler = library().FlowMatchEulerDiscreteScheduler(shift=3.0)
    return {
        "text_encoder": UMT5EncoderModel(encoder),
        "tokenizer": words,
        "vae": vae,
        "scheduler": scheduler,
    }


def wan() -> Any:
    """Wan 2.1, text to video."""
    return library().WanPipeline(transformer=wan_transformer(), **wan_parts())


def wan_experts() -> Any:
    """Wan 2.2, text to video, an expert for each side of the boundary."""
    return library().WanPipeline(
        transformer=wan_transformer(),
        transformer_2=wan_transformer(),
        boundary_ratio=0.875,
        **wan_parts(),
    )


def wan_image() -> Any:
    """Wan 2.1, image to video: four channels tell the given frames, four hold them, and CLIP looks
    at the first."""
    from transformers import CLIPImageProcessorPil, CLIPVisionConfig, CLIPVisionModel

    sides: dict[str, Any] = {"image_size": 16, "patch_size": 8}
    widths: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    return library().WanImageToVideoPipeline(
        transformer=wan_transformer(12, image_dim=16, added_kv_proj_dim=24),
        image_encoder=CLIPVisionModel(CLIPVisionConfig(**sides, **widths)),
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
        ),
        **wan_parts(),
    )


def wan_image_experts() -> Any:
    """Wan 2.2, image to video, two experts and no CLIP."""
    experts = {
        "transformer": wan_transformer(12),
        "transformer_2": wan_transformer(12),
        "boundary_ratio": 0.9,
    }
    return library().WanImageToVideoPipeline(**experts, **wan_parts())


def wan_small_image() -> Any:
    """Wan 2.2's small model: the first latent frame is the given one."""
    return library().WanImageToVideoPipeline(
        transformer=wan_transformer(), expand_timesteps=True, **wan_parts()
    )


def hunyuan_video() -> Any:
    """The instruction around the prompt is cut off after 95 tokens."""
    from diffusers.pipelines.hunyuan_video.pipeline_hunyuan_video import DEFAULT_PROMPT_TEMPLATE
    from transformers import CLIPTextConfig, CLIPTextModel, LlamaConfig, LlamaModel

    words = tokenizer(str(DEFAULT_PROMPT_TEMPLATE["template"]))
    shared: dict[str, Any] = {
        "vocab_size": len(words),
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
    }
    ends = {
        "bos_token_id": None,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
    }
    transformer = library().HunyuanVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=16,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        text_embed_dim=16,
        pooled_projection_dim=16,
        rope_axes_dim=(4, 6, 6),
    )
    vae = library().AutoencoderKLHunyuanVideo(
        latent_channels=4, block_out_channels=(4, 4, 4, 4), layers_per_block=1, norm_num_groups=4
    )
    return library().HunyuanVideoPipeline(
        transformer=transformer,
        vae=vae,
        scheduler=library().FlowMatchEulerDiscreteScheduler(shift=7.0),
        text_encoder=LlamaModel(LlamaConfig(num_hidden_layers=3, **shared, **ends)),
        tokenizer=words,
        text_encoder_2=CLIPTextModel(CLIPTextConfig(num_hidden_layers=2, **shared, **ends)),
        tokenizer_2=words,
    )
