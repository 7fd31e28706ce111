"""UniRL's `DefaultDataSource`: a few built-in prompts in turn, for smoke runs without a file."""

from collections.abc import Mapping
from typing import Any

from rl_core.builtin.data.builtin_rows import builtin_prompts
from rl_core.data.order.registry import data_sources
from rl_core.errors import DataError


@data_sources.register("default")
class DefaultDataSource:
    """A few built-in prompts in turn, in their order, without a data file: prompts to draw, or sums
    for a language model.

    Args: data_path: ignored, as part of the sources' common signature, unless it is the built-in
    prompts as a run prepared them.
    """

    def __init__(
        self, data_path: object = None, prompts_per_rollout: int = 1, seed: int = 0
    ) -> None:
        del seed
        rows = data_path if isinstance(data_path, list) else []
        prepared = bool(rows) and all(isinstance(row, Mapping) for row in rows)
        self.items: list[Any] = rows if prepared else builtin_prompts("train")
        if not 1 <= prompts_per_rollout <= len(self.items):
            expected = f"at most the {len(self.items)} built-in ones, or a data file"
            raise DataError(f"{prompts_per_rollout} prompts per rollout; expected {expected}")
        self.batch_size = prompts_per_rollout
        self.position = 0

    def next_batch(self) -> list[object]:
        """Return the next prompts, starting over after the last."""
        places = [(self.position + i) % len(self.items) for i in range(self.batch_size)]
        self.position = (self.position + self.batch_size) % len(self.items)
        return [self.items[place] for place in places]

    def state_dict(self) -> dict[str, int]:
        """Return the position as plain values."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a saved state."""
        self.position = state["position"] % len(self.items)
