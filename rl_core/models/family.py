"""Family of a model by its config; everything that loads a policy goes through this module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_core.errors import ModelError
from rl_core.models import causal_lm
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.checks.can_train import check_model
from rl_core.models.checks.paths import Paths
from rl_core.models.checks.probe import settle
from rl_core.models.checks.shape import read_config
from rl_core.models.loading.load_model import load_model
from rl_core.models.media import PromptMedia
from rl_core.models.quantized import quantize
from rl_core.models.text_part import TextPartPolicy
from rl_core.models.vlm import FAMILIES, FROZEN_BY_DEFAULT, VLMPolicy, family_of, media_of
from schemas.domains import ModelKind
from schemas.recipe import ModelConfig, Recipe
from schemas.sections.policy import ModelPart

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, ProcessorMixin

    from rl_core.models.loading.load_model import AutoClass

OTHER_SENSES = "vision_config", "audio_config"
"""Config keys of vision and audio parts."""


def sees_pictures(source: str) -> bool:
    """Return True if a located model can be trained on rows with images. Raises: ModelError when it
    has no config."""
    return _config_of(source).model_type in FAMILIES


def has_other_senses(config: PreTrainedConfig) -> bool:
    """Return True if a config is that of a multimodal model."""
    from transformers.models.auto import modeling_auto

    types = (
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    )
    has_parts = any(getattr(config, name, None) is not None for name in OTHER_SENSES)
    return has_parts or any(config.model_type in names for names in types)


def why_no_pictures(source: str) -> str:
    """Return the error message for a row with images if a located model is trained on text, with
    what would be right."""
    plain = (
        "the row has images, which this language model cannot see; use a vision-language model "
        "and domain: vision"
    )
    try:
        config = _config_of(source)
    except ModelError:
        # A folder of several models, as a unified one's, has no config of its own.
        return plain
    if config.model_type in FAMILIES:
        return (
            f"the row has images, and this run trains {config.model_type} on text alone; set "
            "domain: vision"
        )
    if has_other_senses(config):
        return (
            f"the row has images, and models of type {config.model_type!r} are trained on text "
            "alone; leave the row out, or use one of the types that are trained on images: "
            f"{', '.join(sorted(FAMILIES))}"
        )
    return plain


def picture_facts(source: str) -> tuple[str, int]:
    """Return the `model_type` of a located vision-language model, and its image token. Raises:
    ModelError."""
    config = _config_of(source)
    family_of(config.model_type)
    return config.model_type, config.image_token_id


def load_policy(
    source: str,
    config: ModelConfig,
    processor: ProcessorMixin | None = None,
    paths: Paths | None = None,
    *,
    text_alone: bool = False,
) -> CausalLMPolicy:
    """Load the policy with float32 master weights.

    Args: processor: processor of a vision-language model. paths: findings of an earlier load of the
    same model. text_alone: True if no row has media.
    Raises: ModelError when the model cannot be loaded or trained.
    """
    found = _config_of(source)
    if found.model_type in FAMILIES and not text_alone:
        policy: CausalLMPolicy = _load_vlm(source, config, processor)
    elif has_other_senses(found):
        policy = _load_text_part(source, config, found)
    else:
        return causal_lm.load_policy(source, config, paths)
    quantize(policy, config.quantize)
    settle(policy, paths, config.attention)
    return policy


def check_located(recipe: Recipe, source: str) -> None:
    """Run `check_model` on a located model, whose config is fetched if it is on the hub. Raises:
    ModelError."""
    kind = recipe.domain.traits.model
    if kind is ModelKind.PIPELINE or recipe.model.trust_remote_code:
        return
    folder = Path(source)
    if not folder.is_dir():
        if kind is not ModelKind.UNIFIED:
            check_model(recipe, _config_of(source).to_dict())
    elif (config := read_config(folder)) is not None:
        check_model(recipe, config, folder)


def _load_vlm(source: str, config: ModelConfig, processor: ProcessorMixin | None) -> VLMPolicy:
    from transformers import AutoModelForImageTextToText

    model = load_model(AutoModelForImageTextToText, source, config, "vision-language model")
    known = model.config.model_type, model.config.image_token_id
    return seeing_policy(
        model, config, _blank(processor, *known) if processor is not None else None
    )


def seeing_policy(
    model: PreTrainedModel, config: ModelConfig, blank: PromptMedia | None = None
) -> VLMPolicy:
    """Return the policy of a loaded vision-language model."""
    return VLMPolicy(model, FROZEN_BY_DEFAULT if config.frozen is None else config.frozen, blank)


def _load_text_part(source: str, config: ModelConfig, found: PreTrainedConfig) -> TextPartPolicy:
    if ModelPart.LANGUAGE_MODEL in (config.frozen or ()):
        raise ModelError(
            f"model.frozen names {ModelPart.LANGUAGE_MODEL}, but rows of text train nothing "
            "else; leave it out"
        )
    if getattr(found, "is_encoder_decoder", False):
        raise ModelError(
            f"model.path {config.path}: models of type {found.model_type!r} read with an encoder "
            "and write with a decoder, which is not supported; use a decoder-only model"
        )
    return TextPartPolicy(
        load_model(_class_of(found), source, config, "model that reads and writes text")
    )


def _class_of(config: PreTrainedConfig) -> AutoClass:
    """Return the class that a checkpoint was saved from, so that it is saved in the same form; else
    the one that loads its type.

    transformers' own choice for a type may be its language model alone.
    """
    import transformers
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
        AutoModelForMultimodalLM,
    )
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        MODEL_FOR_MULTIMODAL_LM_MAPPING,
    )

    for name in config.architectures or ():
        named = getattr(transformers, name, None)
        if named is not None and getattr(named, "config_class", None) is type(config):
            return named
    if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        return AutoModelForImageTextToText
    if type(config) in MODEL_FOR_MULTIMODAL_LM_MAPPING:
        return AutoModelForMultimodalLM
    return AutoModelForCausalLM


def _config_of(source: str) -> PreTrainedConfig:
    from transformers import AutoConfig

    name, _, revision = source.partition("@")
    try:
        return AutoConfig.from_pretrained(name, revision=revision or None)
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path {source}: {str(error).strip().splitlines()[0]}") from error


def _blank(processor: Any, model_type: str, image_token_id: int) -> PromptMedia | None:
    """Return the media of a small grey image."""
    from PIL import Image

    picture = Image.new("RGB", (64, 64), (200, 200, 200))
    inputs = processor(text=[processor.image_token], images=[[picture]], return_tensors="pt")
    return media_of(inputs, family_of(model_type), image_token_id)
