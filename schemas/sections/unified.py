"""The recipe's `unified` block: one model that writes a plan and draws it, and the loss weight of
each stage.

The recipe's own `model`, `lora`, `fsdp`, `optimizer` and `scheduler` belong to the whole model, its
`algorithm` and `rollout` to the stage `text`; the stage `images` is sampled as the recipe's block
`diffusion` says.
"""

from enum import StrEnum

from pydantic import Field, model_validator

from schemas.sections.parts import Block
from schemas.sections.section import Section
from schemas.sections.tracks import Asking, Propagation


class Compared(StrEnum):
    """Group of images that an image's advantage is relative to."""

    PLAN = "plan"
    """Images of the same plan: measures how well the plan was drawn."""
    PROMPT = "prompt"
    """Images of the same prompt, over all its plans; one image per plan is then enough."""


class TextStage(Asking):
    """The text stage, which writes the tokens of the plan."""

    weight: float = Field(default=1.0, ge=0)
    """Factor of the text loss in a step; with 0, plans are sampled and scored but do not train."""
    max_grad_norm: float | None = Field(default=None, gt=0)
    """Norm to which the stage's own gradient is clipped before it is added; unset leaves clipping
    to `training`."""

    @property
    def train(self) -> bool:
        """True if the stage contributes to the loss."""
        return self.weight > 0


class ImagesStage(Section):
    """The image stage, which denoises the image."""

    weight: float = Field(default=1.0, ge=0)
    """Factor of the image loss in a step; with 0, images are sampled and scored but do not
    train."""
    max_grad_norm: float | None = Field(default=None, gt=0)
    """Norm to which the stage's own gradient is clipped before it is added; unset leaves clipping
    to `training`."""
    algorithm: Block = Field(default_factory=lambda: {"name": "flow_grpo"})
    """Algorithm of the image stage; a policy gradient on denoising steps."""
    samples_per_plan: int = Field(default=2, ge=1)
    """Number of images per plan."""
    compared: Compared = Compared.PLAN
    """Group of images that an image's advantage is relative to."""
    micro_batch_size: int = Field(default=8, ge=1)
    """Images that share a forward pass in training."""

    @property
    def train(self) -> bool:
        """True if the stage contributes to the loss."""
        return self.weight > 0


class UnifiedConfig(Section):
    """The two stages of a unified model."""

    text: TextStage = TextStage()
    """The stage that turns prompts into plans."""
    images: ImagesStage = ImagesStage()
    """The stage that turns plans into images."""
    propagation: Propagation = Propagation.MEAN
    """Reward of a plan, computed from the rewards of its images."""

    @model_validator(mode="after")
    def _something_learns(self) -> "UnifiedConfig":
        if not (self.text.train or self.images.train):
            raise ValueError("no stage is trained: set text.weight or images.weight above 0")
        if (
            self.images.train
            and self.images.compared is Compared.PLAN
            and self.images.samples_per_plan < 2
        ):
            raise ValueError(
                "images.samples_per_plan is 1, so that a picture has none of its plan to be "
                "compared with; set 2 or more, or images.compared: prompt"
            )
        return self
