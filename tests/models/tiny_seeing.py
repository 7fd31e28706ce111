"""Tiny random checkpoints of models that also see, as they lie on the hub: weights, tokenizer,
template, processor.

Their weights are spread wide, so that whatever is left out shows in the log-probabilities.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.conftest import character_tokenizer

IMAGE, VIDEO = "<|image|>", "<|video|>"
PATCHES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
GRIDS = {
    "depth": 2,
    "intermediate_size": 64,
    "num_heads": 4,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "out_hidden_size": 32,
}
AXES = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
STATES = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}


def tokenizer() -> Any:
    """One token a character, and marks for pictures and films."""
    made = character_tokenizer()
    made.add_special_tokens({"additional_special_tokens": [IMAGE, VIDEO]})
    return made


def _text(words: Any, **changes: Any) -> dict[str, Any]:
    return {
        "vocab_size": len(words),
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 512,
        "pad_token_id": words.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": words.eos_token_id,
        **changes,
    }


def _tokens(words: Any) -> dict[str, Any]:
    image, video = (words.convert_tokens_to_ids(mark) for mark in (IMAGE, VIDEO))
    return {
        "image_token_id": image,
        "video_token_id": video,
        "vision_start_token_id": image,
        "vision_end_token_id": image,
    }


def gemma3(words: Any) -> Any:
    """Tied, its windows shorter than a row."""
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = _text(
        words,
        sliding_window=6,
        layer_types=["sliding_attention", "full_attention"],
        query_pre_attn_scalar=8,
    )
    image = words.convert_tokens_to_ids(IMAGE)
    config = Gemma3Config(
        vision_config=PATCHES, text_config=text, mm_tokens_per_image=4, image_token_index=image
    )
    return Gemma3ForConditionalGeneration(config)


def qwen2_vl(words: Any) -> Any:
    """Positions of three axes."""
    from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

    vision = {**GRIDS, "embed_dim": 32, "hidden_size": 32}
    text = _text(words, rope_parameters=AXES)
    return Qwen2VLForConditionalGeneration(
        Qwen2VLConfig(vision_config=vision, text_config=text, **_tokens(words))
    )


def qwen3_5(words: Any) -> Any:
    """Layers with recurrent states among those with attention."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    vision = {**GRIDS, "hidden_size": 32, "num_position_embeddings": 16}
    text = _text(words, rope_parameters={**AXES, "partial_rotary_factor": 1.0}, **STATES)
    return Qwen3_5ForConditionalGeneration(
        Qwen3_5Config(vision_config=vision, text_config=text, **_tokens(words))
    )


def qwen3_5_moe(words: Any) -> Any:
    """The same with experts."""
    from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

    vision = {**GRIDS, "hidden_size": 32, "num_position_embeddings": 16}
    rope = {**AXES, "partial_rotary_factor": 1.0}
    text = _text(
        words, rope_parameters=rope, shared_expert_intermediate_size=32, **STATES, **EXPERTS
    )
    config = Qwen3_5MoeConfig(vision_config=vision, text_config=text, **_tokens(words))
    return Qwen3_5MoeForConditionalGeneration(config)


def mistral3(words: Any) -> Any:
    """A tower with rotations of its own."""
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    vision = {**PATCHES, "model_type": "pixtral", "head_dim": 8}
    text = {**_text(words), "model_type": "mistral"}
    image = words.convert_tokens_to_ids(IMAGE)
    return Mistral3ForConditionalGeneration(
        Mistral3Config(
            vision_config=vision, text_config=text, image_token_index=image, spatial_merge_size=2
        )
    )


def llama4(words: Any) -> Any:
    """Experts, and a head that belongs to the language model inside."""
    from transformers import Llama4Config, Llama4ForConditionalGeneration

    vision = {
        **PATCHES,
        "vision_output_dim": 32,
        "projector_input_dim": 32,
        "projector_output_dim": 32,
    }
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2}
    text = _text(words, intermediate_size_mlp=64, attention_chunk_size=8, **experts)
    image = words.convert_tokens_to_ids(IMAGE)
    return Llama4ForConditionalGeneration(
        Llama4Config(
            vision_config=vision, text_config=text, image_token_index=image, boi_token_index=image
        )
    )


def glm4v(words: Any) -> Any:
    """Positions of three axes, half of each head turned."""
    from transformers import Glm4vConfig, Glm4vForConditionalGeneration

    vision = {**GRIDS, "hidden_size": 32, "image_size": 16}
    rope = {**AXES, "partial_rotary_factor": 1.0}
    text = _text(words, rope_parameters=rope)
    return Glm4vForConditionalGeneration(
        Glm4vConfig(vision_config=vision, text_config=text, **_tokens(words))
    )


MAKERS: dict[str, Callable[[Any], Any]] = {
    one.__name__: one for one in (gemma3, qwen2_vl, qwen3_5, qwen3_5_moe, mistral3, llama4, glm4v)
}


def save(kind: str, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """A checkpoint of that type, the same every time."""
    words = tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MAKERS[kind](words)
        spread(model)
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.save_pretrained(folder)
    template, words.chat_template = words.chat_template, None
    words.save_pretrained(folder)
    # A processor that wants torchvision, and holds the template.
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "Qwen2VLImageProcessorFast"})
    )
    (folder / "processor_config.json").write_text(
        json.dumps({"processor_class": "Qwen2VLProcessor"})
    )
    return folder


@torch.no_grad()
def spread(model: Any) -> None:
    """Large weights, and norms and biases that differ from channel to channel."""
    for parameter in model.parameters():
        if parameter.dim() > 1 and float(parameter.std()) > 0:
            parameter.mul_(0.2 / float(parameter.std()))
        else:
            parameter.add_(0.1 * torch.randn(parameter.shape))
