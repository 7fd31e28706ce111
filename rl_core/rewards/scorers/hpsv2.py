"""Human Preference Score v2 (arXiv 2306.09341): the cosine similarity of a CLIP ViT-H/14 fine-tuned
on people's choices.

The weights are published in OpenCLIP's format; they are renamed and loaded into transformers'
class.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rl_core.rewards.base import ImageScorer, Sample, Unscored, reward_scorers
from rl_core.rewards.hub import Clip, fill, from_open_clip, weights_file


@reward_scorers.register("hpsv2")
class HpsScorer(ImageScorer):
    """Human Preference Score v2; about 0.2 to 0.35."""

    class Config(ImageScorer.Config):
        """Settings of the HPS scorer."""

        model: str = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"
        """The CLIP model that was fine-tuned: a folder or a Hub name, optionally with
        `@revision`."""
        weights: str | None = "xswu/HPSv2:HPS_v2.1_compressed.pt"
        """The fine-tuned weights: a path or `owner/name:file`; null if `model` has them already."""
        batch_size: int = Field(default=16, ge=1)
        """Images that are scored together."""

    config: Config

    def __init__(self, config: Config, device: str = "cpu") -> None:
        super().__init__(config, device)
        self.clip = Clip(config.model, None, device)
        if config.weights is not None:
            fill(
                self.clip.model,
                from_open_clip(weights_file(config.weights)),
                f"rewards.hpsv2.weights {config.weights}",
            )

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score images; prompts are truncated at CLIP's limit."""
        return self.clip.cosines(samples).tolist()
