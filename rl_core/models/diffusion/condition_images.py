"""Condition image of a prompt: a video's first frame, or the image to edit."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from rl_core.errors import ModelError

if TYPE_CHECKING:
    from PIL.Image import Image


class ConditionImages(StrEnum):
    """Use of condition images by prompts."""

    NONE = "none"
    """No prompt has one."""
    OPTIONAL = "optional"
    """All prompts of a run have one, or none."""
    REQUIRED = "required"
    """Every prompt has one."""


def check_images(family: str, images: Sequence[Image | None], use: ConditionImages) -> None:
    """Refuse prompts with an image that is not supported, or without a required one.

    Raises: ModelError at the first.
    """
    for row, image in enumerate(images):
        if image is not None and use is ConditionImages.NONE:
            raise ModelError(
                f"{family}: prompt {row} has a condition image; the model reads text alone, "
                "leave it out"
            )
        if image is None and use is ConditionImages.REQUIRED:
            raise ModelError(
                f"{family}: prompt {row} has no condition image; the model needs one (media_refs)"
            )


def fitted(image: Image, width: int, height: int) -> Image:
    """Return the image cropped to that aspect ratio about its centre, and scaled: samples of one
    batch have conditions of one size."""
    from PIL import ImageOps
    from PIL.Image import Resampling

    # The filter of diffusers' image processors.
    return ImageOps.fit(image.convert("RGB"), (width, height), Resampling.LANCZOS)
