"""One tiny model of every supported class of vision-language models, with inputs such as its
processor would make.

Two of the processors want torchvision, so pictures enter as tensors here: random pixels in the
shapes of each class.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.models.media import PromptMedia

IMAGE, VIDEO, PAD, EOS, FIRST_WORD = 1, 2, 0, 3, 8
VOCABULARY = 64
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": PAD,
    "bos_token_id": None,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
}
IDEFICS_VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}
MROPE = {"rope_type": "default", "rope_theta": 10000.0}


@dataclass(frozen=True)
class Kind:
    """A class of models: how to build one, and what one picture is to it."""

    make: Callable[[], Any]
    picture: Callable[[torch.Generator], dict[str, Tensor]]
    tokens: int
    """Image tokens of one picture."""


def _idefics(prefix: str) -> Callable[[], Any]:
    def make() -> Any:
        import transformers

        config = getattr(transformers, f"{prefix}Config")(
            image_token_id=IMAGE,
            scale_factor=2,
            vision_config=IDEFICS_VISION,
            text_config={**TEXT, "model_type": "llama"},
        )
        return getattr(transformers, f"{prefix}ForConditionalGeneration")(config)

    return make


def _qwen2_5() -> Any:
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
        "out_hidden_size": 32,
    }
    text = {**TEXT, "rope_parameters": {**MROPE, "mrope_section": [1, 1, 2]}}
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            vision_config=vision, text_config=text, image_token_id=IMAGE, video_token_id=VIDEO
        )
    )


def _qwen3() -> Any:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    vision = {
        "depth": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "patch_size": 4,
        "temporal_patch_size": 2,
        "spatial_merge_size": 2,
        "out_hidden_size": 32,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0],
    }
    text = {**TEXT, "head_dim": 8, "rope_parameters": {**MROPE, "mrope_section": [1, 1, 2]}}
    return Qwen3VLForConditionalGeneration(
        Qwen3VLConfig(
            vision_config=vision, text_config=text, image_token_id=IMAGE, video_token_id=VIDEO
        )
    )


def _internvl() -> Any:
    from transformers import InternVLConfig, InternVLForConditionalGeneration

    vision = {**IDEFICS_VISION, "image_size": [16, 16], "patch_size": [4, 4]}
    text = {**TEXT, "model_type": "qwen2"}
    return InternVLForConditionalGeneration(
        InternVLConfig(
            vision_config=vision, text_config=text, image_token_id=IMAGE, downsample_ratio=0.5
        )
    )


def _llava_onevision() -> Any:
    from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

    config = LlavaOnevisionConfig(
        vision_config={
            **IDEFICS_VISION,
            "model_type": "siglip_vision_model",
            "vision_use_head": False,
        },
        text_config={**TEXT, "model_type": "qwen2"},
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=[[16, 16]],
    )
    return LlavaOnevisionForConditionalGeneration(config)


def _idefics_picture(generator: torch.Generator) -> dict[str, Tensor]:
    mask = torch.ones(1, 1, 16, 16, dtype=torch.long)
    return {
        "pixel_values": torch.randn(1, 1, 3, 16, 16, generator=generator),
        "pixel_attention_mask": mask,
    }


def _qwen_picture(generator: torch.Generator) -> dict[str, Tensor]:
    return {
        "pixel_values": torch.randn(16, 3 * 2 * 4 * 4, generator=generator),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }


def _plain_picture(generator: torch.Generator) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(1, 3, 16, 16, generator=generator)}


def _tiled_picture(generator: torch.Generator) -> dict[str, Tensor]:
    tiles = torch.randn(1, 2, 3, 16, 16, generator=generator)
    return {
        "pixel_values": tiles,
        "image_sizes": torch.tensor([[16, 16]]),
        "batch_num_images": torch.tensor([1]),
    }


KINDS = {
    "idefics3": Kind(_idefics("Idefics3"), _idefics_picture, 4),
    "smolvlm": Kind(_idefics("SmolVLM"), _idefics_picture, 4),
    "qwen2_5_vl": Kind(_qwen2_5, _qwen_picture, 4),
    "qwen3_vl": Kind(_qwen3, _qwen_picture, 4),
    "internvl": Kind(_internvl, _plain_picture, 4),
    # Sixteen of the whole picture, four rows of four with a line break each of its one tile.
    "llava_onevision": Kind(_llava_onevision, _tiled_picture, 36),
}


def made(kind: str, seed: int = 0) -> Any:
    """A random model of that class, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = KINDS[kind].make()
    # As drawn, heads are nearly uniform and pictures hardly felt, and wrong log-probabilities would
    # not show.
    with torch.no_grad():
        noise = torch.randn(model.lm_head.weight.shape, generator=torch.Generator().manual_seed(1))
        model.lm_head.weight.copy_(0.3 * noise)
        for name, value in model.named_parameters():
            if value.dim() == 2 and any(
                part in name for part in ("connector", "projector", "merger")
            ):
                value *= 10
    return model.eval()


def media(kind: str, num_pictures: int, seed: int) -> PromptMedia:
    """The pictures of one prompt, black-and-white noise."""
    generator = torch.Generator().manual_seed(seed)
    pictures = [KINDS[kind].picture(generator) for _ in range(num_pictures)]
    if kind == "llava_onevision" and num_pictures > 1:
        # Several pictures of one prompt are shown whole, without tiles.
        tensors = {
            "pixel_values": torch.cat([picture["pixel_values"] for picture in pictures]),
            "image_sizes": torch.cat([picture["image_sizes"] for picture in pictures]),
            "batch_num_images": torch.tensor([num_pictures]),
        }
        return PromptMedia(tensors, image_tokens(kind, num_pictures))
    tensors = {name: torch.cat([picture[name] for picture in pictures]) for name in pictures[0]}
    return PromptMedia(tensors, image_tokens(kind, num_pictures))


def image_tokens(kind: str, num_pictures: int) -> int:
    """Image tokens of a prompt with so many pictures."""
    shown_whole = kind == "llava_onevision" and num_pictures > 1
    return num_pictures * (17 if shown_whole else KINDS[kind].tokens)


def prompt(kind: str, num_pictures: int, num_words: int, seed: int) -> list[int]:
    """Words with a run of image tokens for each picture among them."""
    rng = random.Random(seed)
    tokens = image_tokens(kind, num_pictures) // max(num_pictures, 1)
    words = [rng.randrange(FIRST_WORD, VOCABULARY) for _ in range(num_words)]
    runs = [token for _ in range(num_pictures) for token in (5, *[IMAGE] * tokens, 6)]
    return [words[0], *runs, *words[1:]]


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param
