"""Held-out prompts, in one pass, in the order of their file."""

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from rl_core.errors import DataError

T = TypeVar("T")


class EvaluationSource(Generic[T]):
    """Batches of `items` in order; the last may be smaller. Iterating again after the end starts
    over.

    An interrupted loop continues with the next batch after `load_state_dict`.
    """

    def __init__(self, items: Sequence[T], batch_size: int) -> None:
        if not items or batch_size < 1:
            raise DataError(
                f"{len(items)} held-out rows in batches of {batch_size}: expected at least 1 of "
                "each"
            )
        self.items = items
        self.batch_size = batch_size
        self.position = 0

    def __len__(self) -> int:
        return -(-len(self.items) // self.batch_size)

    def __iter__(self) -> Iterator[list[T]]:
        while self.position < len(self.items):
            start = self.position
            self.position = min(start + self.batch_size, len(self.items))
            yield list(self.items[start : self.position])
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        """Return the position as plain values."""
        return {"position": self.position, "num_items": len(self.items)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a saved state. Raises: DataError when it belongs to other rows."""
        if state["num_items"] != len(self.items):
            raise DataError(
                f"the saved position is in {state['num_items']} held-out rows, here are "
                f"{len(self.items)}"
            )
        self.position = state["position"]
