"""Base class of scorers: samples in, a number for each out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, SupportsFloat, TypeAlias

from pydantic import Field

from rl_core.runtime.registry import PluginConfig, Registry
from schemas.sections.checks.numbers import Seconds

if TYPE_CHECKING:
    from PIL.Image import Image

LARGEST_REWARD = 1e30
"""Magnitude below which weighted sums of rewards fit 32-bit floats."""


class Modality(StrEnum):
    """Kind of output that a policy produces."""

    TEXT = "text"
    """Replies of a language model."""
    IMAGE = "image"
    """A single image."""
    VIDEO = "video"
    """Frames of a video, in order."""


@dataclass(frozen=True)
class Sample:
    """One rollout sample to score."""

    prompt: str
    """Text of the last user message, or the caption."""
    replies: tuple[str, ...] = ()
    """The model's own words, turn by turn, without the messages of environments and tools."""
    image: Image | None = None
    frames: tuple[Image, ...] = ()
    ground_truth: object = None
    num_tokens: int = 0
    """Length of the last reply in tokens."""
    is_truncated: bool = False
    """True if a length limit truncated the reply."""
    metadata: Mapping[str, object] = field(default_factory=dict)
    """Further columns of the row."""
    messages: tuple[Mapping[str, object], ...] = ()
    """The whole conversation in order, with system messages and those of environments and tools;
    empty where only prompt and replies are known."""

    group: tuple[str, ...] = ()
    """Last replies of all rows of the group, this one included, in order; empty where replies are
    not compared."""
    place: int = 0
    """Position of this row in `group`."""

    @property
    def conversation(self) -> tuple[Mapping[str, object], ...]:
        """The messages, or the prompt and the last reply where these alone are known."""
        asked = {"role": "user", "content": self.prompt}
        return self.messages or (asked, {"role": "assistant", "content": self.text})

    @property
    def text(self) -> str:
        """The last reply; empty if there is none."""
        return self.replies[-1] if self.replies else ""


@dataclass(frozen=True)
class Unscored:
    """Marker in place of a score: this sample could not be scored."""

    reason: str
    verdict: str | None = None
    """Text of a judge that could not be read."""
    final: bool = False
    """True if the scorer would answer the same again, so that it is not asked again."""


@dataclass(frozen=True)
class Judged:
    """A score with the words that a judge gave for it."""

    score: float
    verdict: str
    parts: Mapping[str, float] = field(default_factory=dict)
    """Scores of single criteria, by name."""


Given: TypeAlias = float | Judged | Unscored
"""Result of a scorer for one sample."""


class Scorer(ABC):
    """A named scorer. The service calls `score` from one thread at a time."""

    class Config(PluginConfig):
        """Settings of every scorer."""

        weight: float = 1.0
        """Factor of the score in the reward; with 0 the score is only logged."""
        key: str | None = Field(default=None, pattern=r"^[a-z0-9_]+$")
        """Name of the scorer in metrics and advantages, for recipes that use the same scorer twice;
        unset means its registered name."""
        timeout_s: Seconds = Field(default=120.0, gt=0)
        """Longest time for all samples of a rollout on one rank in seconds, including retries."""
        batch_size: int = Field(default=64, ge=1)
        """Samples that are scored together."""

        @property
        def language_models(self) -> tuple[str, ...]:
            """Folders or names of the language models that the scorer loads."""
            return ()

    modalities: ClassVar[frozenset[Modality]]
    """Kinds of output that the scorer can score."""

    def __init__(self, config: Any, device: str = "cpu") -> None:
        """Create the scorer.

        Args: device: device of its model, if it has one.
        """
        # Any: a subclass declares `config` as its own Config.
        self.config = config
        self.device = device

    @abstractmethod
    def score(self, samples: Sequence[Sample]) -> Sequence[Given]:
        """Return a score per sample, in order; NaN is the same as Unscored. An exception means that
        no sample was scored; a ServiceError or RecipeError says that asking again is of no use."""

    def counts(self) -> dict[str, float]:
        """Return what the scorer counted since the last call, by name, such as requests."""
        return {}

    def close(self) -> None:
        """Release the scorer's resources."""
        return None


reward_scorers: Registry[Scorer] = Registry("reward", "rl_core.rewards.scorers")
"""Scorers by the `name` of an entry of a recipe's `rewards`."""


class ImageScorer(Scorer):
    """Base class of scorers of images."""

    modalities = frozenset({Modality.IMAGE})

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score the samples that have an image, and mark the others as unscored."""
        with_image = [sample for sample in samples if sample.image is not None]
        scored = iter(self.score_images(with_image) if with_image else [])
        return [
            Unscored("the sample has no image") if sample.image is None else next(scored)
            for sample in samples
        ]

    @abstractmethod
    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score samples that all have an image, as `score` does."""


def checked_reward(value: SupportsFloat) -> float:
    """Return a reward as a float.

    Raises: ValueError when it is no number, or one that 32-bit floats, in which rewards are summed
    and weighted, may not hold.
    """
    try:
        reward = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{str(value)[:40]!r}, not a number that a float holds") from error
    if not abs(reward) <= LARGEST_REWARD:  # not so for NaN, too
        raise ValueError(f"{reward}, not a finite number between -1e30 and 1e30")
    return reward
