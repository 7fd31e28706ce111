"""CLIPScore (arXiv 2104.08718): similarity of image and prompt, 2.5 * max(cosine, 0)."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from rl_core.rewards.base import ImageScorer, Sample, Unscored, reward_scorers
from rl_core.rewards.hub import Clip

SCALE = 2.5


@reward_scorers.register("clip")
class ClipScorer(ImageScorer):
    """CLIP similarity of image and prompt; about 0.5 to 0.9 for images that fit."""

    class Config(ImageScorer.Config):
        """Settings of the CLIP scorer."""

        model: str = "openai/clip-vit-large-patch14"
        """A CLIP model: a folder or a Hub name, optionally with `@revision`."""
        batch_size: int = Field(default=16, ge=1)
        """Images that are scored together."""

    config: Config

    def __init__(self, config: Config, device: str = "cpu") -> None:
        super().__init__(config, device)
        self.clip = Clip(config.model, None, device)

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score images; prompts are truncated at CLIP's limit."""
        return (SCALE * self.clip.cosines(samples).clamp_min(0)).tolist()
