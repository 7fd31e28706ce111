"""The recipe's `unified` block: one model that writes a plan and draws it, and what each stage counts for in a step.

The recipe's own `model`, `lora`, `fsdp`, `optimizer` and `scheduler` are those of the whole model, its `algorithm` and
`rollout` those of the stage `text`; the stage `images` is sampled as the recipe's block `diffusion` says.
"""

from enum import StrEnum
from typing import Any

from pydantic import Field, model_validator

from schemas.section import Section
from schemas.tracks import Asking, Propagation


class Compared(StrEnum):
    """Which pictures a picture's advantage is relative to."""

    PLAN = "plan"
    """Those of the same plan: how well it was drawn."""
    PROMPT = "prompt"
    """Those of the same prompt, whatever was planned; with it, one picture of each plan is enough."""


class TextStage(Asking):
    """The tokens of the plan."""

    weight: float = Field(default=1.0, ge=0)
    """Factor of their loss in a step; 0 leaves them out: plans are sampled and scored only."""
    max_grad_norm: float | None = Field(default=None, gt=0)
    """The stage's own gradient is clipped to this norm before it is added; unset leaves it to `training`."""

    @property
    def train(self) -> bool:
        """Whether it has a part in the loss."""
        return self.weight > 0


class ImagesStage(Section):
    """The denoising steps of the picture."""

    weight: float = Field(default=1.0, ge=0)
    """Factor of their loss in a step; 0 leaves them out: pictures are sampled and scored only."""
    max_grad_norm: float | None = Field(default=None, gt=0)
    """The stage's own gradient is clipped to this norm before it is added; unset leaves it to `training`."""
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "flow_grpo"})
    """What trains them; a policy gradient on denoising steps."""
    samples_per_plan: int = Field(default=2, ge=1)
    """Pictures of each plan."""
    compared: Compared = Compared.PLAN
    """Which pictures a picture's advantage is relative to."""
    micro_batch_size: int = Field(default=8, ge=1)
    """Pictures that run forward together in training."""

    @property
    def train(self) -> bool:
        """Whether it has a part in the loss."""
        return self.weight > 0


class UnifiedConfig(Section):
    """The two stages of a unified model."""

    text: TextStage = TextStage()
    """Prompts become plans."""
    images: ImagesStage = ImagesStage()
    """Plans become pictures."""
    propagation: Propagation = Propagation.MEAN
    """What a plan earns by its pictures."""

    @model_validator(mode="after")
    def _something_learns(self) -> "UnifiedConfig":
        if not (self.text.train or self.images.train):
            raise ValueError("no stage is trained: set text.weight or images.weight above 0")
        if self.images.train and self.images.compared is Compared.PLAN and self.images.samples_per_plan < 2:
            raise ValueError(
                "images.samples_per_plan is 1, so that a picture has none of its plan to be compared with; set 2 or "
                "more, or images.compared: prompt"
            )
        return self
