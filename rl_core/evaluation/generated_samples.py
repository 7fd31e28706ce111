"""Samples of a diffusion model for held-out prompts: the files, and one picture that compares
before and after training."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.evaluation.rows import PlayedRow

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

NUM_KEPT = 24
"""Maximum number of held-out samples that are stored as files."""
COLUMNS = 4
SIDE, MARGIN, LINE, WRAP, NUM_FRAMES = 96, 12, 13, 34, 3
HEIGHT = SIDE + 5 * LINE + 2 * MARGIN
INK, FADED = (20, 20, 20), (110, 110, 110)


def save_made(played: DataProto | DataProtoRef, folder: Path, fps: int) -> list[str]:
    """Write the first samples of `played` as PNG, videos as animated WebP.

    Returns: their paths; empty for text.
    """
    columns = played.keys if isinstance(played, DataProtoRef) else played.non_tensor_batch
    kind = next((name for name in ("images", "videos") if name in columns), None)
    if kind is None:
        return []
    folder.mkdir(parents=True, exist_ok=True)
    made = played.non_tensor_batch[kind][:NUM_KEPT]
    return [save_pixels(pixels, folder / f"{row:03d}", fps) for row, pixels in enumerate(made)]


def save_pixels(pixels: NDArray[np.uint8], stem: Path, fps: int) -> str:
    """Write a picture as PNG, or a video as animated WebP, without loss.

    Args: pixels: [height, width, 3] or [frames, height, width, 3], 0..255. stem: path without its
    ending. Returns: the file's path.
    """
    from PIL import Image

    if pixels.ndim == 3:
        path = stem.with_suffix(".png")
        Image.fromarray(pixels).save(path)
        return str(path)
    path = stem.with_suffix(".webp")
    first, *others = [Image.fromarray(frame) for frame in pixels]
    first.save(
        path, save_all=True, append_images=others, duration=round(1000 / fps), loop=0, lossless=True
    )
    return str(path)


def before_and_after(
    before: Sequence[PlayedRow],
    after: Sequence[PlayedRow],
    scores: Sequence[str],
    path: Path,
) -> bool:
    """Write a PNG of the samples of both evaluations, made from the same noise; return False if
    there are none.

    Args: before, after: results of `rl_core.evaluation.runner.read_samples` for the same rows.
    scores: names of the scores shown below the samples.
    """
    from PIL import Image, ImageDraw

    pairs = [
        (one, two)
        for one, two in zip(before, after, strict=True)
        if one.get("made") and two.get("made")
    ]
    if not pairs:
        return False
    strips = []
    for one, two in pairs:
        strips += [_strip(row["made"]) for row in (one, two) if "made" in row]
    width = 2 * max(strip.width for strip in strips) + 3 * MARGIN
    width = max(width, WRAP * 6 + 2 * MARGIN)
    sheet = Image.new(
        "RGB", (width * min(COLUMNS, len(pairs)), HEIGHT * -(-len(pairs) // COLUMNS)), "white"
    )
    pen = ImageDraw.Draw(sheet)
    for place, (one, two) in enumerate(pairs):
        corner = place % COLUMNS * width + MARGIN, place // COLUMNS * HEIGHT + MARGIN
        _card(sheet, pen, corner, (strips[2 * place], strips[2 * place + 1]), (one, two), scores)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    return True


def _card(
    sheet: Image,
    pen: ImageDraw,
    corner: tuple[int, int],
    strips: tuple[Image, Image],
    rows: tuple[PlayedRow, PlayedRow],
    scores: Sequence[str],
) -> None:
    left, top = corner
    for line in textwrap.wrap(str(rows[0]["prompt"]), WRAP)[:2] or [""]:
        pen.text((left, top), line, fill=INK)
        top += LINE
    top = corner[1] + 2 * LINE
    sheet.paste(strips[0], (left, top))
    sheet.paste(strips[1], (left + strips[0].width + MARGIN, top))
    top += SIDE
    for name in scores[:3]:
        pen.text((left, top), f"{name} {rows[0][name]:.2f} > {rows[1][name]:.2f}", fill=FADED)
        top += LINE


def _strip(path: str) -> Image:
    """Load a picture, or the first, middle and last frame of a video side by side, `SIDE` pixels
    high."""
    from PIL import Image

    with Image.open(path) as file:
        num_frames = getattr(file, "n_frames", 1)
        shown = sorted(
            {round(place * (num_frames - 1) / (NUM_FRAMES - 1)) for place in range(NUM_FRAMES)}
        )
        frames = []
        for place in shown:
            file.seek(place)
            scale = SIDE / file.height
            frames.append(
                file.convert("RGB").resize(
                    (max(1, round(file.width * scale)), SIDE), Image.Resampling.BOX
                )
            )
    strip = Image.new("RGB", (sum(frame.width for frame in frames), SIDE))
    left = 0
    for frame in frames:
        strip.paste(frame, (left, 0))
        left += frame.width
    return strip
