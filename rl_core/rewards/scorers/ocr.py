"""Rendering of the prompt's quoted text in the image, read by RapidOCR, whose models are part of
its package.

The score is 1 - distance / length: the edit distance between the requested text and the text that
was read, both in lower case without white space, over the longer of the two (as in the text
rendering reward of arXiv 2505.05470). Text beyond the requested one therefore costs, too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rl_core.errors import RecipeError
from rl_core.rewards.base import ImageScorer, Sample, Unscored, reward_scorers
from rl_core.rewards.hub import image_of

if TYPE_CHECKING:
    from PIL.Image import Image

_QUOTED = re.compile(r"\"([^\"]+)\"|\u201c([^\u201d]+)\u201d|(?<!\w)'([^']+)'(?!\w)")


@reward_scorers.register("ocr")
class OcrScorer(ImageScorer):
    """Similarity of the text in the image to the quoted text, from 0 (nothing of it) to 1 (exactly
    that text)."""

    class Config(ImageScorer.Config):
        """Settings of the OCR scorer."""

        min_confidence: float = Field(default=0.5, ge=0, le=1)
        """Least confidence of the reader in a line; other lines do not count."""
        num_threads: int = Field(default=1, ge=1)
        """Number of threads of the reader."""

    config: Config

    def __init__(self, config: Config, device: str = "cpu") -> None:
        """Load the reader.

        Raises: RecipeError when the package is missing.
        """
        super().__init__(config, device)
        try:
            from rapidocr import RapidOCR
        except ImportError as error:
            raise RecipeError(
                f"reward ocr needs the extra `rewards`: pip install 'rl-train[rewards]' ({error})"
            ) from error
        threads = {}
        for kind in ("intra", "inter"):
            threads[f"EngineConfig.onnxruntime.{kind}_op_num_threads"] = config.num_threads
        wanted = {"Global.log_level": "error", "Global.text_score": config.min_confidence}
        # Any: its result has another type for each kind of reading.
        self._reader: Any = RapidOCR(params=wanted | threads)

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score images; samples whose prompt quotes nothing are unscored."""
        return [self._one(sample) for sample in samples]

    def _one(self, sample: Sample) -> float | Unscored:
        wanted = plain("".join(quoted(sample.prompt)))
        if not wanted:
            return Unscored(f"the prompt quotes no text to look for: {sample.prompt!r:.80}")
        read = plain(self.read(image_of(sample)))
        return 1.0 - edit_distance(wanted, read) / max(len(wanted), len(read))

    def read(self, image: Image) -> str:
        """Return the text in an image, line by line."""
        import numpy as np

        # OpenCV's order of channels.
        return "\n".join(self._reader(np.asarray(image.convert("RGB"))[:, :, ::-1]).txts or ())


def quoted(prompt: str) -> list[str]:
    """Return the texts in quotation marks."""
    return [next(filter(None, groups)) for groups in _QUOTED.findall(prompt)]


def plain(text: str) -> str:
    """Return a text in lower case, without white space."""
    return "".join(text.lower().split())


def edit_distance(first: str, second: str) -> int:
    """Return the number of insertions, deletions and replacements between two texts
    (Levenshtein)."""
    row = list(range(len(second) + 1))
    for above, one in enumerate(first):
        left = row[0] = above + 1
        diagonal = above
        for place, other in enumerate(second, start=1):
            diagonal, row[place] = (
                row[place],
                min(row[place] + 1, left + 1, diagonal + (one != other)),
            )
            left = row[place]
    return row[-1]
