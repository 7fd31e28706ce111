"""Which family a model belongs to, told by its config; everything that loads a policy comes through here."""

from __future__ import annotations

from typing import Any

from rl_core.errors import ModelError
from rl_core.models import causal_lm
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.media import PromptMedia
from rl_core.models.vlm import FAMILIES, FROZEN_BY_DEFAULT, VLMPolicy, family_of, media_of
from schemas.recipe import ModelConfig


def sees_pictures(source: str) -> bool:
    """Whether a located model is a vision-language model. Raises: ModelError when its class is not supported."""
    config = _config_of(source)
    if getattr(config, "vision_config", None) is not None:
        family_of(config.model_type)
    return config.model_type in FAMILIES


def picture_facts(source: str) -> tuple[str, int]:
    """The `model_type` of a located vision-language model, and its image token. Raises: ModelError."""
    config = _config_of(source)
    return config.model_type, config.image_token_id


def load_policy(source: str, config: ModelConfig, processor: Any = None) -> CausalLMPolicy:
    """The policy with float32 master weights. Args: processor: of a vision-language model.

    Raises: ModelError when the model cannot be loaded.
    """
    if not sees_pictures(source):
        return causal_lm.load_policy(source, config)
    return _load_vlm(source, config, processor)


def _load_vlm(source: str, config: ModelConfig, processor: Any) -> VLMPolicy:
    from transformers import AutoModelForImageTextToText

    model = causal_lm.load_model(AutoModelForImageTextToText, source, config, "vision-language model")
    known = model.config.model_type, model.config.image_token_id
    return seeing_policy(model, config, _blank(processor, *known) if processor is not None else None)


def seeing_policy(model: Any, config: ModelConfig, blank: PromptMedia | None = None) -> VLMPolicy:
    """The policy over a loaded vision-language model."""
    return VLMPolicy(model, FROZEN_BY_DEFAULT if config.frozen is None else config.frozen, blank)


def _config_of(source: str) -> Any:
    from transformers import AutoConfig

    name, _, revision = source.partition("@")
    try:
        return AutoConfig.from_pretrained(name, revision=revision or None)
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path {source}: {str(error).strip().splitlines()[0]}") from error


def _blank(processor: Any, model_type: str, image_token_id: int) -> Any:
    """The media of a small grey picture."""
    from PIL import Image

    picture = Image.new("RGB", (64, 64), (200, 200, 200))
    inputs = processor(text=[processor.image_token], images=[[picture]], return_tensors="pt")
    return media_of(inputs, family_of(model_type), image_token_id)
