"""The LAION aesthetic predictor (arXiv 2210.08402 app. B): how much people would like a picture, whatever was asked.

A small head on CLIP's picture embedding, trained on ratings of 1 to 10.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rl_core.rewards.base import ImageScorer, Sample, Unscored, reward_scorers
from rl_core.rewards.hub import Clip, fill, image_of, scoring_head, weights_file


@reward_scorers.register("aesthetic")
class AestheticScorer(ImageScorer):
    """The predicted rating over 10."""

    class Config(ImageScorer.Config):
        """The judge."""

        model: str = "openai/clip-vit-large-patch14"
        """The CLIP model below the head: a folder or a Hub name, `@revision` after it."""
        weights: str
        """The head, `sac+logos+ava1-l14-linearMSE.pth`: a path or `owner/name:file`."""
        batch_size: int = Field(default=16, ge=1)
        """Pictures judged together."""

    config: Config

    def __init__(self, config: Config, device: str = "cpu") -> None:
        super().__init__(config, device)
        self.clip = Clip(config.model, None, device)
        self.head = scoring_head(self.clip.model.config.projection_dim).to(device).eval()
        weights = {name.removeprefix("layers."): tensor for name, tensor in weights_file(config.weights).items()}
        fill(self.head, weights, f"rewards.aesthetic.weights {config.weights}")

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """The prompt does not matter."""
        import torch

        image_BE, _ = self.clip.embed([image_of(sample) for sample in samples], [""] * len(samples))
        with torch.inference_mode():
            return (self.head(image_BE)[:, 0] / 10).tolist()
