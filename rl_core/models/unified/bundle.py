"""A unified model that a worker loads once: the policy, its tokenizer, and the frozen encoders and
VAE."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.models.chat.tokenizer import load_tokenizer
from rl_core.models.checks.comparison import token_rows
from rl_core.models.diffusion.base import Size
from rl_core.models.diffusion.bundle import INDEX, DiffusionBundle, pipeline_index, snapshot
from rl_core.models.unified.base import UnifiedFamily
from rl_core.models.unified.families import unified_class
from rl_core.models.unified.policy import UnifiedPolicy
from schemas.recipe import ModelConfig


class UnifiedBundle(DiffusionBundle):
    """Policy, tokenizer and family of one model.

    Args: source: result of `rl_core.models.locate`. size: size of the images that are planned and
    drawn.
    """

    processor: None = None
    """Processor of images, which unified models do not take."""

    def __init__(self, source: str, config: ModelConfig, size: Size) -> None:
        self.source, self.config, self.size = str(snapshot(source, config.path)), config, size
        self.family: UnifiedFamily = load_unified(self.source, config)
        self.policy = UnifiedPolicy(self.family, size=size)
        self.tokenizer = plan_tokenizer(self.source, config)

    def load_policy(self, source: str | None = None) -> UnifiedPolicy:
        """Load a new copy of the policy before training, which shares encoders and VAE with the
        first.

        Args: source: a folder with other weights.
        """
        again = load_unified(source or self.source, self.config, trained_only=True)
        return UnifiedPolicy(self.family, again.transformer, size=self.size)

    def said_by(self, policy: Any, device: torch.device) -> Tensor:
        """Return a policy's results on the probe inputs, [N]: log-probabilities of tokens, then
        velocities."""
        rows = token_rows(
            self.tokenizer, policy.language_model.config, num_choices=policy.num_choices
        )
        return torch.cat(
            [*(row.said_by(policy, device) for row in rows), super().said_by(policy, device)]
        )


def plan_tokenizer(source: str, config: ModelConfig) -> Tokenizer:
    """Return the tokenizer of the part that writes. Raises: ModelError when the folder is not a
    unified model."""
    folder = str(snapshot(source, config.path))
    return load_tokenizer(f"{folder}/{_checked_class(folder, config).tokenizer_folder}")


def load_unified(source: str, config: ModelConfig, *, trained_only: bool = False) -> UnifiedFamily:
    """Load a family with its parts in float32, with everything frozen that is not trained.

    Args: trained_only: leave tokenizers, encoders and VAE out.
    Raises: ModelError when the folder is not a unified model, or cannot be loaded.
    """
    family = _checked_class(source, config)
    kept = {family.writer, "transformer", "scheduler"}
    parts = [name for name, part in pipeline_index(source).items() if isinstance(part, list)]
    loaded = family.load(
        source, config, {name: None for name in parts if trained_only and name not in kept}
    )
    for part in loaded.pipeline.components.values():
        if isinstance(part, nn.Module):
            part.requires_grad_(False).eval()
    loaded.transformer.requires_grad_(True).train()
    for module in loaded.frozen:
        module.requires_grad_(False)
    return loaded


def _checked_class(source: str, config: ModelConfig) -> type[UnifiedFamily]:
    """Return the family of a folder: a pipeline's by its index, that of a single model by its
    config."""
    single = Path(source) / "config.json"
    if single.is_file() and not (Path(source) / INDEX).is_file():
        names = json.loads(single.read_text(encoding="utf-8")).get("architectures") or ["unknown"]
    else:
        names = [pipeline_index(source).get("_class_name")]
    family = unified_class(str(names[0]))
    family.check(source, config)
    return family
