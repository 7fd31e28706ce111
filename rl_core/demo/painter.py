"""A diffusion model that draws one picture at a time, denoised as in an evaluation."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from rl_core.data_proto import DataProto
from rl_core.demo.questions import Answer, Question
from rl_core.errors import ModelError, RecipeError
from rl_core.models.diffusion.bundle import DiffusionBundle
from rl_core.models.diffusion.policy import DiffusionPolicy
from rl_core.rollout.diffusion.engine import DiffusionEngine
from rl_core.train.weights.buckets import WeightVersion
from schemas.recipe import Recipe

if TYPE_CHECKING:
    from rl_core.rollout.engine import PolicyHolder


class Holder:
    """Holder of fixed weights, with the interface that an engine expects."""

    def __init__(self, bundle: DiffusionBundle, device: torch.device) -> None:
        self.bundle, self.device = bundle, device
        self.policy = bundle.policy.to(device).eval()

    def weight_version(self, *, evaluation: bool = False) -> WeightVersion:
        """Return a constant version."""
        return WeightVersion(0)

    @contextmanager
    def gathered(self) -> Iterator[DiffusionPolicy]:
        """Yield the policy."""
        with torch.no_grad():
            yield self.policy

    rollout_policy = gathered


class Painter:
    """A loaded pipeline that draws.

    Args: source: result of `locate`. recipe: sizes, steps and guidance.
    """

    def __init__(self, source: str, recipe: Recipe, device: str) -> None:
        if recipe.diffusion.num_frames > 1:
            raise RecipeError(
                "the page shows pictures, not videos: diffusion.num_frames is more than 1"
            )
        holder = Holder(DiffusionBundle(source, recipe.model), torch.device(device))
        # Fixed weights have no ranks, and nothing that draws asks for them.
        fixed = cast("PolicyHolder[Any, Any]", holder)
        self.engine = DiffusionEngine(fixed, recipe.diffusion, recipe.rollout, None, 0, 1)

    def answer(self, question: Question) -> Answer:
        """Draw the last message; the same seed gives the same noise for every model."""
        self.engine.seed = question.seed
        item = {"uid": "asked", "prompt": question.messages[-1]["content"]}
        asked = DataProto.from_dict({}, {"item": [item]})
        made = self.engine.evaluate(asked)
        assert made is not None  # one rank answers
        (pixels,), (error,) = made.non_tensor_batch["images"], made.non_tensor_batch["error"]
        if pixels is None:
            raise ModelError(f"the prompt cannot be drawn: {error}")
        return Answer(image=_png(pixels))


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image

    with io.BytesIO() as file:
        Image.fromarray(pixels).save(file, "png")
        return file.getvalue()
