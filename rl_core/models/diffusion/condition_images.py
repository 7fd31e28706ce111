"""The one picture that a prompt may come with: a video's first frame, or what is to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from rl_core.errors import ModelError

if TYPE_CHECKING:
    from PIL.Image import Image


class ConditionImages(StrEnum):
    """Whether prompts come with one condition image each."""

    NONE = "none"
    """No prompt does."""
    OPTIONAL = "optional"
    """All prompts of a run do, or none."""
    REQUIRED = "required"
    """Every prompt does."""


def check_images(family: str, images: Sequence[Image | None], use: ConditionImages) -> None:
    """Raises: ModelError at the first prompt with an image that is not taken, or without one that is needed."""
    for row, image in enumerate(images):
        if image is not None and use is ConditionImages.NONE:
            raise ModelError(f"{family}: prompt {row} has a condition image; the model reads text alone, leave it out")
        if image is None and use is ConditionImages.REQUIRED:
            raise ModelError(f"{family}: prompt {row} has no condition image; the model needs one (media_refs)")


def fitted(image: Image, width: int, height: int) -> Image:
    """The picture cut to that shape about its centre, and scaled: samples of one batch have conditions of one size."""
    from PIL import ImageOps
    from PIL.Image import Resampling

    # The filter of diffusers' image processors.
    return ImageOps.fit(image.convert("RGB"), (width, height), Resampling.LANCZOS)
