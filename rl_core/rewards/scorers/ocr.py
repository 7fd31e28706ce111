"""Is the quoted text of the prompt written in the picture? Read by RapidOCR, whose models come with its package.

The score is 1 - distance / length: the edit distance between what was asked for and what was read, both in lower case
without white space, over the longer of the two (as in the text rendering reward of arXiv 2505.05470). Text beyond what
was asked for therefore costs, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from rl_core.errors import RecipeError
from rl_core.rewards.base import ImageScorer, Sample, Unscored, reward_scorers

_QUOTED = re.compile(r"\"([^\"]+)\"|\u201c([^\u201d]+)\u201d|(?<!\w)'([^']+)'(?!\w)")


@reward_scorers.register("ocr")
class OcrScorer(ImageScorer):
    """From 0 (nothing of it) to 1 (exactly the quoted text)."""

    class Config(ImageScorer.Config):
        """How text is read."""

        min_confidence: float = Field(default=0.5, ge=0, le=1)
        """Lines that the reader is less sure of do not count."""
        num_threads: int = Field(default=1, ge=1)
        """Processors the reader may use."""

    config: Config

    def __init__(self, config: Config, device: str = "cpu") -> None:
        """Raises: RecipeError when the package is missing."""
        super().__init__(config, device)
        try:
            from rapidocr import RapidOCR
        except ImportError as error:
            raise RecipeError(
                f"reward ocr needs the extra `rewards`: pip install 'rl-train[rewards]' ({error})"
            ) from error
        threads = {f"EngineConfig.onnxruntime.{kind}_op_num_threads": config.num_threads for kind in ("intra", "inter")}
        wanted = {"Global.log_level": "error", "Global.text_score": config.min_confidence}
        self._reader: Any = RapidOCR(params=wanted | threads)

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Prompts that quote nothing are marked."""
        return [self._one(sample) for sample in samples]

    def _one(self, sample: Sample) -> float | Unscored:
        wanted = plain("".join(quoted(sample.prompt)))
        if not wanted:
            return Unscored(f"the prompt quotes no text to look for: {sample.prompt!r:.80}")
        read = plain(self.read(sample.image))
        return 1.0 - edit_distance(wanted, read) / max(len(wanted), len(read))

    def read(self, image: Any) -> str:
        """The text in a picture, line by line."""
        import numpy as np

        # OpenCV's order of channels.
        return "\n".join(self._reader(np.asarray(image.convert("RGB"))[:, :, ::-1]).txts or ())


def quoted(prompt: str) -> list[str]:
    """What stands in quotation marks."""
    return [next(filter(None, groups)) for groups in _QUOTED.findall(prompt)]


def plain(text: str) -> str:
    """Lower case, without white space."""
    return "".join(text.lower().split())


def edit_distance(first: str, second: str) -> int:
    """Insertions, deletions and replacements between two texts (Levenshtein)."""
    row = list(range(len(second) + 1))
    for above, one in enumerate(first):
        left = row[0] = above + 1
        diagonal = above
        for place, other in enumerate(second, start=1):
            diagonal, row[place] = row[place], min(row[place] + 1, left + 1, diagonal + (one != other))
            left = row[place]
    return row[-1]
