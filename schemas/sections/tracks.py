"""The recipe's `tracks` block, for domains whose rollout is a tree: prompts, rewrites of prompts,
images of rewrites.

The recipe's own `model`, `lora`, `fsdp`, `optimizer`, `scheduler`, `algorithm` and `rollout` belong
to the track `text`; the track `images` has its own, and is sampled as the recipe's block
`diffusion` says.
"""

from enum import StrEnum

from pydantic import Field, field_validator, model_validator

from schemas.sections.parts import Block
from schemas.sections.policy import (
    FSDPConfig,
    LoraConfig,
    LrSchedulerConfig,
    ModelConfig,
    OptimizerConfig,
)
from schemas.sections.section import Section

IMAGES_FOLDER = "images"
"""Subfolder of an exported prompt enhancer that holds its diffusion model, if that was trained."""


class Propagation(StrEnum):
    """Reward of a row, computed from its children."""

    MEAN = "mean"
    """Mean reward of the children."""
    MAX = "max"
    """Reward of the best child."""


class Rewrite(Section):
    """An example rewrite that is shown to the language model."""

    prompt: str
    """Prompt of the example."""
    rewrite: str
    """Rewrite of the example's prompt."""


class Asking(Section):
    """Chat messages with which a language model is asked to write for a prompt."""

    system: str = ""
    """System message; empty sends none."""
    examples: list[Rewrite] = Field(default_factory=list)
    """Few-shot examples, as turns before the prompt."""
    template: str = "{prompt}"
    """Template of the user message, for the prompt and the examples."""

    @field_validator("template")
    @classmethod
    def _asks_about_the_prompt(cls, template: str) -> str:
        return _with_one_place(template, "{prompt}")


class TextTrack(Asking):
    """The language model that rewrites prompts."""

    train: bool = True
    """Train the language model."""


class ImagesTrack(Section):
    """The diffusion model that draws the rewrites."""

    train: bool = False
    """Train the diffusion model."""
    model: ModelConfig
    """Initial weights, a diffusers pipeline."""
    template: str = "{rewrite}"
    """Template of the diffusion model's prompt, filled with the rewrite."""
    samples_per_rewrite: int = Field(default=2, ge=1)
    """Number of images per rewrite."""
    algorithm: Block = Field(default_factory=lambda: {"name": "flow_grpo"})
    """Algorithm of the diffusion model; a policy gradient on denoising steps."""
    lora: LoraConfig | None = None
    """Adapters of the diffusion model; unset trains every parameter."""
    fsdp: FSDPConfig = FSDPConfig()
    """FSDP2 wrapping of the diffusion model."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Optimizer of the diffusion model."""
    scheduler: LrSchedulerConfig = LrSchedulerConfig()
    """Learning-rate schedule over optimizer steps."""
    micro_batch_size: int = Field(default=8, ge=1)
    """Images that share a forward pass in training."""
    num_devices: int = Field(default=0, ge=0)
    """Devices out of `placement.num_devices` that are reserved for the diffusion model; with 0 both
    models share all devices."""

    @field_validator("template")
    @classmethod
    def _draws_the_rewrite(cls, template: str) -> str:
        return _with_one_place(template, "{rewrite}")


class TracksConfig(Section):
    """The prompt enhancer's two tracks."""

    text: TextTrack = TextTrack()
    """The language model that rewrites prompts."""
    images: ImagesTrack
    """The diffusion model that draws the rewrites."""
    propagation: Propagation = Propagation.MEAN
    """Reward of a rewrite, computed from the rewards of its images."""

    @model_validator(mode="after")
    def _something_learns(self) -> "TracksConfig":
        if not (self.text.train or self.images.train):
            raise ValueError("no track is trained: set text.train or images.train to true")
        if self.images.train and self.images.samples_per_rewrite < 2:
            raise ValueError(
                "images.samples_per_rewrite is 1: a picture is compared with its siblings; set 2 "
                "or more, or images.train: false"
            )
        return self


def _with_one_place(template: str, place: str) -> str:
    if template.count(place) != 1:
        raise ValueError(f"must contain {place} once, got {template!r}")
    return template
