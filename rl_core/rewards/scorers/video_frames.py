"""Any image scorer, applied to frames of a video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import islice

from pydantic import Field

from rl_core.errors import RecipeError
from rl_core.rewards.base import (
    Given,
    Judged,
    Modality,
    Sample,
    Scorer,
    Unscored,
    reward_scorers,
)
from schemas.sections.parts import Block


class FrameAverage(StrEnum):
    """Aggregation of the frames' scores into the video's."""

    MEAN = "mean"
    """Mean of the frames' scores."""
    MIN = "min"
    """Lowest of the frames' scores: one bad frame spoils the video."""


@reward_scorers.register("video_frames")
class VideoFramesScorer(Scorer):
    """Aggregated score of evenly spaced frames, including the first and the last, each scored as an
    image."""

    class Config(Scorer.Config):
        """The image scorer, and the number of frames."""

        scorer: Block
        """An image scorer, `{name: ..., ...}`; its weight has no effect here."""
        num_frames: int = Field(default=4, ge=1)
        """Number of scored frames; all if there are fewer."""
        average: FrameAverage = FrameAverage.MEAN
        """Aggregation of the frames' scores."""

    config: Config
    modalities = frozenset({Modality.VIDEO})

    def __init__(self, config: Config, device: str = "cpu") -> None:
        """Create the inner scorer.

        Raises: RecipeError when `scorer` is not an image scorer.
        """
        super().__init__(config, device)
        cls, settings = reward_scorers.resolve(config.scorer, "rewards.video_frames.scorer")
        if Modality.IMAGE not in cls.modalities:
            raise RecipeError(
                f"rewards.video_frames.scorer: {config.scorer} does not score pictures"
            )
        self.inner = cls(settings, device)

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score videos; a video without frames, or with a frame that cannot be scored, is
        unscored."""
        asked: list[Sample] = []
        numbers: list[int] = []
        for sample in samples:
            places = self._places(len(sample.frames))
            asked += [replace(sample, image=sample.frames[one], frames=()) for one in places]
            numbers.append(len(places))
        answers = iter(self.inner.score(asked) if asked else [])
        return [self._together(list(islice(answers, number))) for number in numbers]

    def close(self) -> None:
        """Release the inner scorer's resources."""
        self.inner.close()

    def _places(self, num_frames: int) -> list[int]:
        wanted = min(self.config.num_frames, num_frames)
        if wanted < 2:
            return [num_frames // 2][:num_frames]
        return [round(place * (num_frames - 1) / (wanted - 1)) for place in range(wanted)]

    def _together(self, answers: Sequence[Given]) -> float | Unscored:
        if not answers:
            return Unscored("the sample has no frames")
        bad = next((answer for answer in answers if isinstance(answer, Unscored)), None)
        if bad is not None:
            return bad
        scores = []
        for answer in answers:
            if not isinstance(answer, Unscored):
                scores.append(answer.score if isinstance(answer, Judged) else float(answer))
        if self.config.average is FrameAverage.MIN:
            return min(scores)
        return sum(scores) / len(scores)
