"""The load of a model of transformers in float32, whichever class reads it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from safetensors import SafetensorError

from rl_core.errors import ModelError
from rl_core.models.loading.placeholders import built
from schemas.recipe import ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

    AutoClass: TypeAlias = type[PreTrainedModel] | type[_BaseAutoModelClass]


def load_model(
    auto_class: AutoClass, source: str, config: ModelConfig, what: str
) -> PreTrainedModel:
    """Load float32 weights by one of transformers' auto classes, or leave them unread where
    `weights_left_unread` says so. Raises: ModelError when they cannot be loaded."""
    name, _, revision = source.partition("@")
    load = partial(
        auto_class.from_pretrained,
        name,
        revision=revision or None,
        dtype=torch.float32,
        # Other weight files are pickles, which may run code when they are read.
        use_safetensors=None if config.trust_remote_code else True,
    )
    try:
        try:
            return built(partial(load, attn_implementation=config.attention))
        except ValueError as error:
            # Families whose attention has what sdpa cannot compute (GPT-OSS: sinks).
            if config.attention != "sdpa" or "scaled_dot_product_attention" not in str(error):
                raise
            return built(partial(load, attn_implementation="eager"))
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"model.path {config.path}: cannot be loaded as a {what}: {reason}"
        ) from error
