"""Base class of families of flow-matching models, which only define their differences. Rollout and
replay are shared code.

Shapes: B samples, C latent channels, F latent frames, H x W latent sides. A latent is [B, C, H, W]
for images and [B, C, F, H, W] for videos, float32; a family that feeds its transformer tokens packs
and unpacks them itself. Noise levels are sigma from 1 (noise) to 0 (clean), x_sigma = (1 - sigma)
x_0 + sigma eps, and a velocity is eps - x_0, whatever a model's own convention is.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from rl_core.errors import ModelError
from rl_core.models.diffusion.condition_images import ConditionImages
from rl_core.runtime.registry import nearest

if TYPE_CHECKING:
    import torch
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from PIL.Image import Image
    from torch import Tensor, nn


@dataclass(frozen=True)
class Size:
    """Size of a sample in pixels and frames."""

    height: int
    width: int
    num_frames: int = 1


@dataclass(frozen=True)
class Condition:
    """Conditions of the transformer for one prompt, encoded once for all its samples: tensors
    without a batch axis."""

    tensors: Mapping[str, Tensor]


class DiffusionFamily(ABC):
    """The parts around the trained transformer: frozen encoders, VAE, and conventions.

    Args: pipeline: a diffusers pipeline, its encoders and VAE frozen.
    """

    name: ClassVar[str]
    """Name of the family in messages and docs."""
    pipelines: ClassVar[tuple[str, ...]]
    """Names of the pipeline classes in `model_index.json`."""
    makes_video: ClassVar[bool] = False
    token_side: ClassVar[int] = 2
    """Number of latent rows and columns in one token of the transformer."""
    padded: ClassVar[tuple[str, ...]] = ()
    """Conditions [L, D] whose length L depends on the prompt; all others have one shape for all
    prompts."""

    def __init__(self, pipeline: DiffusionPipeline) -> None:
        self.pipeline: Any = pipeline

    @property
    def transformer(self) -> nn.Module:
        """The trained module."""
        return self.pipeline.transformer

    @property
    def config(self) -> Any:
        """Config of the transformer."""
        return self.pipeline.transformer.config

    @property
    def device(self) -> torch.device:
        """Device of the encoders and the VAE."""
        return self.pipeline.vae.device

    @property
    def block_classes(self) -> tuple[str, ...]:
        """Names of the classes that FSDP wraps one by one."""
        return tuple(getattr(self.pipeline.transformer, "_no_split_modules", None) or ())

    @property
    @abstractmethod
    def lora_targets(self) -> list[str]:
        """Linear layers, by the ends of their names, that get an adapter by default."""

    @property
    def condition_images(self) -> ConditionImages:
        """Use of condition images by prompts (image-to-video, editing)."""
        return ConditionImages.NONE

    @property
    def embedded_guidance(self) -> bool:
        """True if the transformer was distilled to read the guidance scale.

        `velocity` then needs it as the condition `guidance`, [B]; there is no negative prompt and
        no second forward.
        """
        return False

    @abstractmethod
    def encode(
        self, prompts: Sequence[str], images: Sequence[Image | None], size: Size
    ) -> list[Condition]:
        """Return one condition per prompt, on the encoders' device. Raises: ModelError when an
        image is missing or not allowed.

        The negative prompt of classifier-free guidance is encoded by the same call, with the
        prompt's image.
        """

    @abstractmethod
    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """Return [C, H, W] or [C, F, H, W] of one sample. Raises: ModelError on a size that the
        model does not support."""

    @abstractmethod
    def velocity(
        self,
        transformer: nn.Module,
        latents: Tensor,
        sigma_B: Tensor,
        conditions: Mapping[str, Tensor],
    ) -> Tensor:
        """Return eps - x_0 as predicted by the transformer, shaped like the latents, with gradient.

        Args: sigma_B: [B]. conditions: the tensors of `encode`, batched [B, ...].
        """

    @abstractmethod
    def decode(self, latents: Tensor) -> Tensor:
        """Return images [B, 3, height, width] or videos [B, frames, 3, height, width], in 0..1."""

    def latents_of(self, pixels: Tensor) -> Tensor:
        """Return the latents of images [B, 3, height, width] in 0..1, as `decode` takes them.

        Raises: ModelError for a family whose pictures cannot be learnt from yet.
        """
        raise ModelError(
            f"{self.name}: flow_sft cannot encode pictures for this family; use a model of sd3"
        )

    def guide(self, positive: Tensor, negative: Tensor, scale: float) -> Tensor:
        """Apply classifier-free guidance (arXiv 2207.12598) to velocities with and without the
        prompt; scale 1 is the first."""
        return negative + scale * (positive - negative)

    def shift(self, size: Size, num_steps: int = 50) -> float:
        """Return the shift of the noise schedule (`rl_core.sde.sigmas`) that the model was trained
        with.

        Args: num_steps: steps of the schedule; some models use less shift for more steps.
        """
        from rl_core.sde import dynamic_shift

        config = self.pipeline.scheduler.config
        if not config.get("use_dynamic_shifting"):
            return float(config.get("shift") or config.get("flow_shift") or 1.0)
        return dynamic_shift(
            self.num_tokens(size),
            base_tokens=config.get("base_image_seq_len", 256),
            max_tokens=config.get("max_image_seq_len", 4096),
            base_shift=config.get("base_shift", 0.5),
            max_shift=config.get("max_shift", 1.15),
            exponential=config.get("time_shift_type", "exponential") == "exponential",
        )

    def save_adapters(
        self, state: Mapping[str, Tensor], config: Mapping[str, object], folder: Path
    ) -> None:
        """Write trained adapters in the format of the pipeline's `load_lora_weights`.

        Args: state: full tensors by peft's names, below `transformer`. config: peft's, of the
        adapter.
        """
        type(self.pipeline).save_lora_weights(
            str(folder),
            transformer_lora_layers=dict(state),
            transformer_lora_adapter_metadata=dict(config),
        )

    def load_adapters(self, folder: Path) -> None:
        """Load adapters that `save_adapters` wrote into the transformer, as a user of the pipeline
        does."""
        self.pipeline.load_lora_weights(str(folder))

    def num_tokens(self, size: Size) -> int:
        """Return the number of the transformer's tokens of a sample, without conditions."""
        return math.prod(self.latent_shape(size)[1:]) // self.token_side**2

    def batch(self, conditions: Sequence[Condition]) -> dict[str, Tensor]:
        """Batch the conditions of B samples: stacked, and those in `padded` with zeros behind and a
        mask `<name>_mask`.

        Raises: ModelError when only some samples have a condition image.
        """
        import torch
        from torch.nn.utils.rnn import pad_sequence

        names = set(conditions[0].tensors)
        if any(set(one.tensors) != names for one in conditions):
            raise ModelError(
                f"{self.name}: either every prompt of a run has a condition image or none has; "
                "some do"
            )
        columns = {}
        for name in conditions[0].tensors:
            columns[name] = [one.tensors[name] for one in conditions]
        batched = {
            name: torch.stack(rows) for name, rows in columns.items() if name not in self.padded
        }
        for name in self.padded:
            batched[name] = pad_sequence(columns[name], batch_first=True)
            whole = []
            for row in columns[name]:
                whole.append(torch.ones(len(row), dtype=torch.bool, device=row.device))
            batched[f"{name}_mask"] = pad_sequence(whole, batch_first=True)
        return batched


Family = TypeVar("Family", bound=DiffusionFamily)


def family_of(model_class: str, families: Sequence[type[Family]], kind: str) -> type[Family]:
    """Return the one of `families` for a class of models. Raises: ModelError naming the nearest
    known class."""
    by_class = {name: cls for cls in families for name in cls.pipelines}
    if model_class not in by_class:
        known = nearest(model_class, sorted(by_class))
        raise ModelError(f"{kind} models of class {model_class} are not supported{known}")
    return by_class[model_class]
