"""CLIPScore (arXiv 2104.08718): how well picture and prompt go together, 2.5 * max(cosine, 0)."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rl_core.rewards.base import ImageScorer, Sample, Unscored, reward_scorers
from rl_core.rewards.hub import Clip

SCALE = 2.5


@reward_scorers.register("clip")
class ClipScorer(ImageScorer):
    """About 0.5 to 0.9 for pictures that fit."""

    class Config(ImageScorer.Config):
        """The judge."""

        model: str = "openai/clip-vit-large-patch14"
        """A CLIP model: a folder or a Hub name, `@revision` after it."""
        batch_size: int = Field(default=16, ge=1)
        """Pictures judged together."""

    config: Config

    def __init__(self, config: Config, device: str = "cpu") -> None:
        super().__init__(config, device)
        self.clip = Clip(config.model, None, device)

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Prompts are cut off at CLIP's limit."""
        return (SCALE * self.clip.cosines(samples).clamp_min(0)).tolist()
