"""UniRL's `DefaultDataSource`: a few built-in prompts in turn, for smoke runs without a file."""

from typing import Any

from rl_core.errors import DataError
from schemas.media_prompts import MediaPrompt

PROMPTS = (
    "A watercolor landscape with snowy mountains at sunrise.",
    "A cinematic portrait of a robot reading under warm light.",
    "A drone shot flying over a misty pine forest at dawn.",
    "Time-lapse of clouds rolling over a desert canyon.",
    "A red bicycle leaning against a yellow wall.",
    "The word HELLO painted on a wooden sign.",
)


class DefaultDataSource:
    """Endless batches of the built-in prompts, in their order.

    Args: data_path: ignored; part of the sources' common signature.
    """

    def __init__(self, data_path: Any = None, prompts_per_rollout: int = 1, seed: int = 0) -> None:
        del data_path, seed
        if not 1 <= prompts_per_rollout <= len(PROMPTS):
            expected = f"at most the {len(PROMPTS)} built-in ones, or a data file"
            raise DataError(f"{prompts_per_rollout} prompts per rollout; expected {expected}")
        self.batch_size = prompts_per_rollout
        self.position = 0

    def next_batch(self) -> list[MediaPrompt]:
        """Return the next prompts, starting over after the last."""
        places = [(self.position + i) % len(PROMPTS) for i in range(self.batch_size)]
        self.position = (self.position + self.batch_size) % len(PROMPTS)
        return [MediaPrompt(PROMPTS[i], f"builtin:{i}") for i in places]

    def state_dict(self) -> dict[str, int]:
        """Return the position as plain values."""
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a saved state."""
        self.position = state["position"] % len(PROMPTS)
