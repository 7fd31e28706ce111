"""The recipe's `tracks` block, of domains whose rollout is a tree: prompts, rewrites of them, pictures of those.

The recipe's own `model`, `lora`, `fsdp`, `optimizer`, `scheduler`, `algorithm` and `rollout` are those of the track
`text`; the track `images` brings its own, and is sampled as the recipe's block `diffusion` says.
"""

from enum import StrEnum
from typing import Any

from pydantic import Field, field_validator, model_validator

from schemas.policy import FSDPConfig, LoraConfig, LrSchedulerConfig, ModelConfig, OptimizerConfig
from schemas.section import Section

IMAGES_FOLDER = "images"
"""Where the folder of an exported prompt enhancer holds its diffusion model, if that was trained."""


class Propagation(StrEnum):
    """What a row earns by its children."""

    MEAN = "mean"
    """Their mean reward: what it may expect."""
    MAX = "max"
    """The best one's reward: what it makes possible."""


class Rewrite(Section):
    """An example that the language model is shown."""

    prompt: str
    """What somebody asks."""
    rewrite: str
    """What should be drawn for it."""


class Asking(Section):
    """How a language model is asked to write for a prompt."""

    system: str = ""
    """What it is told first; empty says nothing."""
    examples: list[Rewrite] = Field(default_factory=list)
    """Turns before the prompt's own (few-shot)."""
    template: str = "{prompt}"
    """What it is asked, in the examples too."""

    @field_validator("template")
    @classmethod
    def _asks_about_the_prompt(cls, template: str) -> str:
        return _with_one_place(template, "{prompt}")


class TextTrack(Asking):
    """The language model that rewrites prompts."""

    train: bool = True
    """Whether it learns."""


class ImagesTrack(Section):
    """The diffusion model that draws the rewrites."""

    train: bool = False
    """Whether it learns."""
    model: ModelConfig
    """Its starting weights, a diffusers pipeline."""
    template: str = "{rewrite}"
    """The prompt it is given, made of the rewrite."""
    samples_per_rewrite: int = Field(default=2, ge=1)
    """Pictures of each rewrite."""
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "flow_grpo"})
    """What trains it; a policy gradient on denoising steps."""
    lora: LoraConfig | None = None
    """Its adapters; unset trains every parameter."""
    fsdp: FSDPConfig = FSDPConfig()
    """How it is wrapped."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Its optimiser."""
    scheduler: LrSchedulerConfig = LrSchedulerConfig()
    """Its learning rate over optimiser steps."""
    micro_batch_size: int = Field(default=8, ge=1)
    """Pictures that run forward together in training."""
    num_devices: int = Field(default=0, ge=0)
    """Those of `placement.num_devices` that it has to itself; with 0 both models share them all."""

    @field_validator("template")
    @classmethod
    def _draws_the_rewrite(cls, template: str) -> str:
        return _with_one_place(template, "{rewrite}")


class TracksConfig(Section):
    """The prompt enhancer's two tracks."""

    text: TextTrack = TextTrack()
    """Prompts become rewrites."""
    images: ImagesTrack
    """Rewrites become pictures."""
    propagation: Propagation = Propagation.MEAN
    """What a rewrite earns by its pictures."""

    @model_validator(mode="after")
    def _something_learns(self) -> "TracksConfig":
        if not (self.text.train or self.images.train):
            raise ValueError("no track is trained: set text.train or images.train to true")
        if self.images.train and self.images.samples_per_rewrite < 2:
            raise ValueError(
                "images.samples_per_rewrite is 1: a picture is compared with its siblings; set 2 or more, or "
                "images.train: false"
            )
        return self


def _with_one_place(template: str, place: str) -> str:
    if template.count(place) != 1:
        raise ValueError(f"must contain {place} once, got {template!r}")
    return template
