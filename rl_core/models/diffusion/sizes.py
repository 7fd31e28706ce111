"""Checks of the sizes that a family supports, with errors that name the nearest valid ones."""

from __future__ import annotations

from rl_core.errors import ModelError
from rl_core.models.diffusion.base import Size


def check_sides(family: str, size: Size, multiple: int) -> None:
    """Check that both sides are multiples of that many pixels.

    Raises: ModelError when not.
    """
    for name, side in (("height", size.height), ("width", size.width)):
        if side <= 0 or side % multiple:
            below = side // multiple * multiple
            near = f"{below} or {below + multiple}" if below > 0 else str(multiple)
            raise ModelError(
                f"{family}: {name} {side} is not a multiple of {multiple} pixels; use {near}"
            )


def check_single_frame(family: str, size: Size) -> None:
    """Check that an image is requested.

    Raises: ModelError for a video.
    """
    if size.num_frames != 1:
        raise ModelError(
            f"{family} makes single pictures: num_frames is {size.num_frames} and must be 1"
        )


def check_frames(family: str, size: Size, stride: int) -> None:
    """Check that after the first frame each further latent frame holds `stride` frames.

    Raises: ModelError when not.
    """
    if size.num_frames < 1 or (size.num_frames - 1) % stride:
        below = max(size.num_frames - 1, 0) // stride * stride + 1
        raise ModelError(
            f"{family}: num_frames {size.num_frames} is not one more than a multiple of {stride}; "
            f"use {below} or {below + stride}"
        )
