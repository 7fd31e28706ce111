"""What a worker loads once of a unified model: the policy, its tokenizer, and the frozen VAE beside it."""

from __future__ import annotations

from typing import Any

from torch import nn

from rl_core.errors import ModelError
from rl_core.models.diffusion.bundle import DiffusionBundle, pipeline_index, snapshot
from rl_core.models.quiet import quiet_pipelines
from rl_core.models.tokenizer import load_tokenizer
from rl_core.models.unified.compact import CompactUnified
from rl_core.models.unified.policy import UnifiedPolicy
from rl_core.registry import nearest
from schemas.recipe import ModelConfig

TOKENIZER = "tokenizer"
"""Folder of the tokenizer inside the model's."""


class UnifiedBundle(DiffusionBundle):
    """Policy, tokenizer and family of one model. Args: source: what `rl_core.models.locate` returned."""

    processor = None
    """It sees no pictures."""

    def __init__(self, source: str, config: ModelConfig) -> None:
        self.source, self.config = str(snapshot(source, config.path)), config
        self.family = load_unified(self.source, config.path)
        self.policy = UnifiedPolicy(self.family)
        self.tokenizer: Any = load_tokenizer(f"{self.source}/{TOKENIZER}")

    def load_policy(self) -> UnifiedPolicy:
        """The policy before training, anew; it shares the VAE with the first."""
        return UnifiedPolicy(self.family, load_unified(self.source, self.config.path, trained_only=True).transformer)


def load_unified(source: str, path: str, *, trained_only: bool = False) -> CompactUnified:
    """The family over its loaded parts in float32, all but decoder and transformer frozen.

    Args: path: the recipe's, for messages. trained_only: leave tokenizer and VAE out.
    Raises: ModelError when the folder is none of a unified model, or cannot be loaded.
    """
    from rl_core.models.unified.pipeline import CompactUnifiedPipeline

    quiet_pipelines()
    name = str(pipeline_index(source).get("_class_name"))
    if name not in CompactUnified.pipelines:
        known = nearest(name, list(CompactUnified.pipelines))
        raise ModelError(f"model.path {path}: unified models of class {name} are not supported{known}")
    absent: dict[str, Any] = {"tokenizer": None, "vae": None} if trained_only else {}
    try:
        pipeline = CompactUnifiedPipeline.from_pretrained(source, local_files_only=True, **absent)
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path {path}: cannot be loaded: {str(error).strip().splitlines()[0]}") from error
    if isinstance(vae := getattr(pipeline, "vae", None), nn.Module):
        vae.requires_grad_(False).eval()
    loaded = CompactUnified(pipeline)
    loaded.transformer.requires_grad_(True).train()
    return loaded
