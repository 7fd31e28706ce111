"""Overview picture of held-out rows: the image, the question, and the answers before and after
training."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.data.read.row_images import open_image
from rl_core.evaluation.rows import PlayedRow

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

NUM_SHOWN = 12
COLUMNS = 3
SIDE, WIDTH, HEIGHT, MARGIN, LINE = 128, 400, 150, 10, 14
WRAP = 38
RIGHT, WRONG, INK = (20, 120, 40), (180, 30, 30), (20, 20, 20)


def picture_sheet(before: Sequence[PlayedRow], after: Sequence[PlayedRow], path: Path) -> bool:
    """Write a PNG of the first rows that have an image; return False if none has.

    Args: before, after: results of `rl_core.evaluation.runner.read_samples` for the same rows.
    """
    from PIL import Image, ImageDraw

    pairs = [
        (images[0], one, two)
        for one, two in zip(before, after, strict=True)
        if (images := one.get("images"))
    ][:NUM_SHOWN]
    if not pairs:
        return False
    rows = -(-len(pairs) // COLUMNS)
    sheet = Image.new("RGB", (WIDTH * min(COLUMNS, len(pairs)), HEIGHT * rows), "white")
    pen = ImageDraw.Draw(sheet)
    for place, (image, one, two) in enumerate(pairs):
        corner = place % COLUMNS * WIDTH, place // COLUMNS * HEIGHT
        _card(sheet, pen, corner, image, one, two)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)
    return True


def _card(
    sheet: Image,
    pen: ImageDraw,
    corner: tuple[int, int],
    image: str,
    one: PlayedRow,
    two: PlayedRow,
) -> None:
    left, top = corner[0] + MARGIN, corner[1] + MARGIN
    picture = open_image(image)
    scale = SIDE / max(picture.size)
    sheet.paste(
        picture.resize((max(1, int(picture.width * scale)), max(1, int(picture.height * scale)))),
        (left, top),
    )
    left += SIDE + MARGIN
    asked = one["prompt"]
    text = asked if isinstance(asked, str) else asked[-1]["content"]
    question = text.replace("<image>", "").strip()
    for text, colour in (
        (question, INK),
        (f"truth: {one['ground_truth']}", INK),
        (f"before: {one['response']}", _judged(one)),
        (f"after: {two['response']}", _judged(two)),
    ):
        for line in textwrap.wrap(text, WRAP)[:3]:
            pen.text((left, top), line, fill=colour)
            top += LINE


def _judged(row: PlayedRow) -> tuple[int, int, int]:
    return RIGHT if row["reward"] >= 1.0 else WRONG
