"""Captioned pictures of handwritten digits, for supervised fine-tuning of the embedded diffusion
model: scikit-learn's digits, with the prompts of `digit_prompts`."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rl_core.builtin.data.digit_prompts import draw_prompts
from schemas.sections.section import Section

SIDE = 32
"""Side of a picture in pixels; the digits themselves have 8."""


class DigitPicturesSpec(Section):
    """Captioned pictures of handwritten digits."""

    digit_pictures: int = Field(ge=1)
    """Number of rows, each with a different prompt and a picture of its digit."""
    seed: int = 0
    """Seed that selects prompts and pictures."""
    split: Literal["train", "eval"] = "train"
    """Split of the wordings: for training, or held out."""


def digit_picture_rows(
    spec: DigitPicturesSpec, folder: Path
) -> Iterator[tuple[str, dict[str, object], Mapping[str, str]]]:
    """Draw the pictures into `folder`, and yield the text, metadata and picture of each row, the
    picture as a reference relative to the folder's parent.

    Raises: DataError when there are fewer different prompts than requested.
    """
    from PIL import Image
    from PIL.Image import Resampling
    from sklearn.datasets import load_digits

    dataset: Any = load_digits()
    places = []
    for one in range(10):
        places.append([at for at, digit in enumerate(dataset.target) if digit == one])
    rng = random.Random(f"digit pictures {spec.split} {spec.seed}")
    folder.mkdir(parents=True, exist_ok=True)
    for prompt in draw_prompts(spec.split, spec.digit_pictures, spec.seed):
        place = rng.choice(places[prompt.digit])
        path = folder / f"{place}.png"
        grey = (dataset.images[place] / 16 * 255).round().astype("uint8")
        Image.fromarray(grey).resize((SIDE, SIDE), Resampling.NEAREST).save(path)
        ref = {"modality": "image", "role": "target", "uri": f"{folder.name}/{path.name}"}
        yield prompt.text, {"digit": prompt.digit}, ref
