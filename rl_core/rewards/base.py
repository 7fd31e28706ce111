"""What every scorer is: samples in, a number for each out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from rl_core.runtime.registry import PluginConfig, Registry
from schemas.numbers import Seconds

if TYPE_CHECKING:
    from PIL.Image import Image


class Modality(StrEnum):
    """What a policy produced."""

    TEXT = "text"
    """Replies of a language model."""
    IMAGE = "image"
    """One picture."""
    VIDEO = "video"
    """Pictures in order of time."""


@dataclass(frozen=True)
class Sample:
    """One thing to score."""

    prompt: str
    """What was asked: the text of the last user message, or the caption."""
    replies: tuple[str, ...] = ()
    """The model's own words, turn by turn, without what environments and tools said."""
    image: Image | None = None
    frames: tuple[Image, ...] = ()
    ground_truth: Any = None
    num_tokens: int = 0
    """Length of the last reply."""
    is_truncated: bool = False
    """Whether a length limit cut it off."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Further columns of the row."""

    @property
    def text(self) -> str:
        """The last reply; empty when there is none."""
        return self.replies[-1] if self.replies else ""


@dataclass(frozen=True)
class Unscored:
    """In place of a score: this sample could not be scored."""

    reason: str


class Scorer(ABC):
    """A named judge. The service calls `score` from one thread at a time."""

    class Config(PluginConfig):
        """What every scorer can be told."""

        weight: float = 1.0
        """Factor of its score in the reward; with 0 the score is only measured."""
        key: str | None = Field(default=None, pattern=r"^[a-z0-9_]+$")
        """Its name in metrics and advantages, where a recipe has the same scorer twice; unset means its own."""
        timeout_s: Seconds = Field(default=120.0, gt=0)
        """Most time for all samples of a rollout on one rank, all tries included."""
        batch_size: int = Field(default=64, ge=1)
        """Samples scored together."""

    modalities: ClassVar[frozenset[Modality]]
    """What it can score."""

    def __init__(self, config: Any, device: str = "cpu") -> None:
        """Args: device: where its model, if any, computes."""
        self.config = config
        self.device = device

    @abstractmethod
    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """A score per sample, in order; NaN is the same as Unscored. Raises: anything, for none of them scored."""

    def close(self) -> None:
        """Release what the scorer holds."""
        return None


reward_scorers: Registry[Scorer] = Registry("reward", "rl_core.rewards.scorers")
"""Scorers by the `name` of an entry of a recipe's `rewards`."""


class ImageScorer(Scorer):
    """A scorer of pictures."""

    modalities = frozenset({Modality.IMAGE})

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Scores those samples that have an image; the others are marked."""
        with_image = [sample for sample in samples if sample.image is not None]
        scored = iter(self.score_images(with_image) if with_image else [])
        return [Unscored("the sample has no image") if sample.image is None else next(scored) for sample in samples]

    @abstractmethod
    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """As `score`, for samples that have an image."""
