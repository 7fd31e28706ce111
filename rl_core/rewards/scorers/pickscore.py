"""PickScore (arXiv 2305.01569): the scaled cosine similarity of a CLIP trained on people's choices
between two images."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rl_core.rewards.base import ImageScorer, Sample, Unscored, reward_scorers
from rl_core.rewards.hub import Clip


@reward_scorers.register("pickscore")
class PickScorer(ImageScorer):
    """PickScore, about 0.7 to 0.9: the published score of 18 to 24, divided by `divisor`."""

    class Config(ImageScorer.Config):
        """Settings of the PickScore scorer."""

        model: str = "yuvalkirstain/PickScore_v1"
        """A CLIP model: a folder or a Hub name, optionally with `@revision`."""
        processor: str | None = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
        """Processor of the CLIP model; null takes the model's own."""
        divisor: float = Field(default=26.0, gt=0)
        """Divisor that brings the score near 1, the scale of other rewards."""
        batch_size: int = Field(default=16, ge=1)
        """Images that are scored together."""

    config: Config

    def __init__(self, config: Config, device: str = "cpu") -> None:
        super().__init__(config, device)
        self.clip = Clip(config.model, config.processor, device)

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score images; prompts are truncated at CLIP's limit."""
        scale = self.clip.model.logit_scale.detach().exp().float()
        return (scale * self.clip.cosines(samples) / self.config.divisor).tolist()
