"""The LAION aesthetic predictor (arXiv 2210.08402 app. B): how much people would like an image,
regardless of its prompt.

A small head on CLIP's image embedding, trained on ratings of 1 to 10.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rl_core.rewards.base import ImageScorer, Sample, Unscored, reward_scorers
from rl_core.rewards.hub import Clip, fill, image_of, scoring_head, weights_file


@reward_scorers.register("aesthetic")
class AestheticScorer(ImageScorer):
    """Predicted rating divided by 10."""

    class Config(ImageScorer.Config):
        """Settings of the aesthetic scorer."""

        model: str = "openai/clip-vit-large-patch14"
        """The CLIP model below the head: a folder or a Hub name, optionally with `@revision`."""
        weights: str
        """Weights of the head, `sac+logos+ava1-l14-linearMSE.pth`: a path or `owner/name:file`."""
        batch_size: int = Field(default=16, ge=1)
        """Images that are scored together."""

    config: Config

    def __init__(self, config: Config, device: str = "cpu") -> None:
        super().__init__(config, device)
        self.clip = Clip(config.model, None, device)
        self.head = scoring_head(self.clip.model.config.projection_dim).to(device).eval()
        weights = {}
        for name, tensor in weights_file(config.weights).items():
            weights[name.removeprefix("layers.")] = tensor
        fill(self.head, weights, f"rewards.aesthetic.weights {config.weights}")

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score images; the prompt does not matter."""
        import torch

        image_BE, _ = self.clip.embed([image_of(sample) for sample in samples], [""] * len(samples))
        with torch.inference_mode():
            return (self.head(image_BE)[:, 0] / 10).tolist()
