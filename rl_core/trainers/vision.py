"""The wiring for vision-language models: that of text, since a reply is tokens; pictures travel with the prompts."""

from __future__ import annotations

from typing import ClassVar

from rl_core.errors import RecipeError
from rl_core.trainers.text import TextTrainer


class VisionTrainer(TextTrainer):
    """RL on a vision-language model with its environments.

    Workers open and process the pictures, once per prompt; what comes of it stays on the rank that made it, one object
    for all siblings, and is encoded once per pass. Raises: RecipeError where a setting is for text alone.
    """

    track: ClassVar = "vision"

    def build(self) -> None:
        """The blocks of `TextTrainer`."""
        placed = self.recipe.placement
        for name, value, fitting in (
            ("tp_size", placed.tp_size, 1),
            ("sp_size", placed.sp_size, 1),
            ("max_tokens_per_micro_batch", placed.max_tokens_per_micro_batch, None),
        ):
            if value != fitting:
                said = "null" if fitting is None else fitting
                raise RecipeError(
                    f"placement.{name} is {value}: a vision-language model is neither cut over ranks nor packed; set "
                    f"placement.{name} to {said}"
                )
        super().build()
