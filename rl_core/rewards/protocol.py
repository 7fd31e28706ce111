"""The protocol between a reward server and its clients: `POST /score`.

Request: `{"samples": [{"prompt", "replies", "images", "ground_truth", "num_tokens", "is_truncated",
"metadata"}, ...], "rewards": [key, ...] or null for all}`. Images are JPEG in base64: one in
`images`, or the frames of a video in `frames`.

Response: `{"rewards": {key: {"scores": [...], "errors": [...]}}, "total": {"scores", "errors"}}`,
in the order of the samples. A failed item has the score NaN (written `NaN`, as Python's json does;
`null` is read the same) and a reason; the total is the server's weighted sum, and fails if a part
that counts does.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from rl_core.envs.base import as_json
from rl_core.rewards.base import Sample

if TYPE_CHECKING:
    from PIL.Image import Image

    from rl_core.rewards.asking import Scored
    from rl_core.rewards.service import Scores

TOTAL = "total"
MAX_SAMPLES = 1024
MAX_PIXELS = 64_000_000


class AskedSample(BaseModel):
    """A sample in a request."""

    model_config = ConfigDict(extra="forbid")

    prompt: str
    replies: list[str] = Field(default_factory=list)
    images: list[str] = Field(default_factory=list, max_length=1)
    frames: list[str] = Field(default_factory=list, max_length=1024)
    ground_truth: object = None
    num_tokens: int = Field(default=0, ge=0)
    is_truncated: bool = False
    metadata: dict[str, object] = Field(default_factory=dict)


class ScoreRequest(BaseModel):
    """A request to score samples."""

    model_config = ConfigDict(extra="forbid")

    samples: list[AskedSample] = Field(max_length=MAX_SAMPLES)
    rewards: list[str] | None = None


def asked(sample: Sample, quality: int) -> dict[str, object]:
    """Convert a sample to JSON.

    Args: quality: JPEG quality of its images, 1..100.
    """
    return {
        "prompt": sample.prompt,
        "replies": list(sample.replies),
        "images": [] if sample.image is None else [to_jpeg(sample.image, quality)],
        "frames": [to_jpeg(frame, quality) for frame in sample.frames],
        "ground_truth": as_json(sample.ground_truth),
        "num_tokens": sample.num_tokens,
        "is_truncated": sample.is_truncated,
        "metadata": as_json(dict(sample.metadata)),
    }


def sample_of(asked: AskedSample) -> Sample:
    """Convert a request's sample to a Sample. Raises: ValueError on an invalid image."""
    images = [from_jpeg(text) for text in asked.images]
    return Sample(
        prompt=asked.prompt,
        replies=tuple(asked.replies),
        image=images[0] if images else None,
        frames=tuple(from_jpeg(text) for text in asked.frames),
        ground_truth=asked.ground_truth,
        num_tokens=asked.num_tokens,
        is_truncated=asked.is_truncated,
        metadata=asked.metadata,
    )


def answer_of(scores: Scores) -> dict[str, object]:
    """Convert scores to a response."""
    parts = {}
    for key, found in scores.by_key.items():
        parts[key] = {"scores": found.scores, "errors": found.errors}
    return {"rewards": parts, TOTAL: _total(scores)}


def read_answer(
    body: object, reward: str | None, num_samples: int
) -> tuple[list[float], list[str | None]]:
    """Return scores and reasons of one reward, or the total. Raises: ValueError when the response
    is not of this form."""
    parts = body
    if reward is not None and isinstance(body, Mapping):
        parts = body.get("rewards")
    part = None
    if isinstance(parts, Mapping):
        part = parts.get(TOTAL if reward is None else reward)
    if not isinstance(part, Mapping) or not isinstance(part.get("scores"), list):
        raise ValueError(f"the answer has no scores of {reward or TOTAL!r}: {str(body)[:200]}")
    scores = [math.nan if score is None else float(score) for score in part["scores"]]
    errors: list[str | None] = list(part.get("errors") or [None] * len(scores))
    if len(scores) != num_samples or len(errors) != num_samples:
        raise ValueError(
            f"the answer has {len(scores)} scores and {len(errors)} errors for {num_samples} "
            "samples"
        )
    return scores, errors


def to_jpeg(image: Image, quality: int) -> str:
    """Encode an image as JPEG in base64."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=quality, subsampling=0)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def from_jpeg(text: str) -> Image:
    """Decode a JPEG in base64. Raises: ValueError when it is not an image, or too large."""
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(io.BytesIO(base64.b64decode(text, validate=True)), formats=["JPEG"])
        if image.width * image.height > MAX_PIXELS:
            raise ValueError(f"{image.width} x {image.height} pixels are more than {MAX_PIXELS}")
        return image.convert("RGB")
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"not a JPEG picture in base64: {error}") from error


def _total(scores: Scores) -> dict[str, Sequence[object]]:
    counted: list[tuple[str, float, Scored]] = []
    for key, found in scores.by_key.items():
        if scores.weights[key]:
            counted.append((key, scores.weights[key], found))
    num_samples = len(next(iter(scores.by_key.values())).scores) if scores.by_key else 0
    sums: list[float] = []
    errors: list[str | None] = []
    for row in range(num_samples):
        sums.append(float(sum(weight * found.scores[row] for _, weight, found in counted)))
        errors.append(_first_error(counted, row))
    return {"scores": sums, "errors": errors}


def _first_error(counted: Sequence[tuple[str, float, Scored]], row: int) -> str | None:
    for key, _, found in counted:
        if found.errors[row] is not None:
            return f"{key}: {found.errors[row]}"
    return None
