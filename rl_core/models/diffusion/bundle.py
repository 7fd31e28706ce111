"""A diffusion model that a worker loads once: the policy, and the frozen encoders and VAE around
it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rl_core.errors import ModelError
from rl_core.models.checks.comparison import Live
from rl_core.models.diffusion.base import DiffusionFamily
from rl_core.models.diffusion.export import export_pipeline
from rl_core.models.diffusion.families import family_class
from rl_core.models.diffusion.policy import DiffusionPolicy
from rl_core.models.diffusion.velocities import velocities
from schemas.recipe import LoraConfig, ModelConfig

if TYPE_CHECKING:
    pass

INDEX = "model_index.json"
"""File that identifies a folder as a diffusers pipeline."""


class DiffusionBundle:
    """Policy and family of one pipeline. Args: source: result of `rl_core.models.locate`."""

    def __init__(self, source: str, config: ModelConfig) -> None:
        self.source = str(snapshot(source, config.path))
        self.config = config
        self.family = load_family(self.source, config.path)
        self.policy = DiffusionPolicy(self.family)

    def load_policy(self, source: str | None = None) -> DiffusionPolicy:
        """Load a new copy of the policy before training, which shares encoders and VAE with the
        first.

        Args: source: a folder with other weights.
        """
        again = load_family(source or self.source, self.config.path, trained_only=True)
        return DiffusionPolicy(self.family, again.transformer)

    def adapted_policy(self, adapters: Path) -> DiffusionPolicy:
        """Return the policy before training with adapters, loaded by the pipeline itself."""
        again = load_family(self.source, self.config.path, trained_only=True)
        again.load_adapters(adapters)
        return DiffusionPolicy(self.family, again.transformer)

    def said_by(self, policy: DiffusionPolicy, device: torch.device) -> Tensor:
        """Return a policy's results on the probe inputs, [N]: velocities of a small sample at
        several noise levels."""
        return velocities(self.family, policy, device)

    def place(self, device: torch.device) -> None:
        """Move encoders and VAE to their device; the policy is moved by its wrapper."""
        trained = set(self.family.transformer.modules())
        for part in self.family.pipeline.components.values():
            if isinstance(part, nn.Module) and part not in trained:
                part.to(device)

    def export(
        self, trained: dict[str, Tensor], lora: LoraConfig | None, out: Path, live: Live
    ) -> None:
        """Write the trained policy as a pipeline folder or its adapters alone; see
        `export_pipeline`."""
        export_pipeline(self, trained, lora, out, live)


def snapshot(source: str, path: str) -> Path:
    """Return the folder of a located pipeline, fetched from the hub if it is not local. Raises:
    ModelError."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    name, _, revision = source.partition("@")
    try:
        return Path(DiffusionPipeline.download(name, revision=revision or None))
    except (OSError, ValueError) as error:
        raise ModelError(f"model.path {path}: {str(error).strip().splitlines()[0]}") from error


def pipeline_index(folder: str | Path) -> dict[str, Any]:
    """Return the components of a pipeline folder: class and library by name. Raises: ModelError
    when it is not a pipeline."""
    path = Path(folder) / INDEX
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model.path {folder}: no readable {INDEX} ({error}); the domain diffusion needs the "
            "folder of a diffusers pipeline, as written by save_pretrained"
        ) from error


def load_family(source: str, path: str, *, trained_only: bool = False) -> DiffusionFamily:
    """Load a pipeline and return its family, in float32 and frozen.

    Args: path: the recipe's, for messages. trained_only: leave encoders and VAE out.
    Raises: ModelError when the class is not supported or the folder cannot be loaded.
    """
    import diffusers

    index = pipeline_index(source)
    family = family_class(str(index.get("_class_name")))
    parts = {
        name: part
        for name, part in index.items()
        if not name.startswith("_") and isinstance(part, list)
    }
    # A component that the folder lacks (a third text encoder) must be named as such, or it is
    # looked for.
    absent: dict[str, None] = {name: None for name, part in parts.items() if part[0] is None}
    if trained_only:
        absent |= {
            name: None
            for name in parts
            if not name.startswith("transformer") and name != "scheduler"
        }
    pipeline_cls = getattr(diffusers, index["_class_name"])
    try:
        pipeline = pipeline_cls.from_pretrained(source, local_files_only=True, **absent)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model.path {path}: cannot be loaded: {str(error).strip().splitlines()[0]}"
        ) from error
    pipeline.set_progress_bar_config(disable=True)
    for part in pipeline.components.values():
        if isinstance(part, nn.Module):
            part.requires_grad_(False).eval()
    loaded = family(pipeline)
    loaded.transformer.requires_grad_(True).train()
    return loaded
