"""The order in which training sees prompts: shuffled anew each epoch, resumable to the row."""

import random
from collections.abc import Sequence
from typing import Any, Generic, Protocol, TypeVar

from rl_core.errors import DataError

T = TypeVar("T")


class DataSource(Protocol[T]):
    """What a trainer draws its prompts from."""

    def next_batch(self) -> list[T]:
        """The next batch; there always is one."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where the source stands, as plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with exactly the batch after the saved one."""
        ...


class PromptSource(Generic[T]):
    """Endless batches of `items`; each epoch is a new shuffle, and a last partial batch is dropped.

    An epoch's order depends on `seed` and the epoch's number alone, so its state is two numbers.
    Raises: DataError when there are fewer items than one batch takes.
    """

    def __init__(self, items: Sequence[T], batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise DataError(f"batch size {batch_size}: expected at least 1")
        if batch_size > len(items):
            expected = "give more rows, or lower the batch size"
            raise DataError(f"a batch of {batch_size} prompts is more than the {len(items)} rows there are; {expected}")
        self.items = items
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.position = 0
        self._order = self._epoch_order()

    def next_batch(self) -> list[T]:
        """The next `batch_size` items, beginning a new epoch where the rest of this one is too short."""
        if self.position + self.batch_size > len(self.items):
            self.epoch += 1
            self.position = 0
            self._order = self._epoch_order()
        chosen = self._order[self.position : self.position + self.batch_size]
        self.position += self.batch_size
        return [self.items[i] for i in chosen]

    def state_dict(self) -> dict[str, int]:
        """Where the source stands; `load_state_dict` continues with exactly the next batch."""
        return {"epoch": self.epoch, "position": self.position, "seed": self.seed, "num_items": len(self.items)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a saved state. Raises: DataError when it belongs to other rows or another seed."""
        for name, here in (("seed", self.seed), ("num_items", len(self.items))):
            if state[name] != here:
                expected = "resume with the data and seed of the checkpoint, or start a new run"
                raise DataError(f"the saved data position has {name} {state[name]}, this run has {here}; {expected}")
        self.epoch = state["epoch"]
        self.position = state["position"]
        self._order = self._epoch_order()

    def _epoch_order(self) -> list[int]:
        order = list(range(len(self.items)))
        random.Random(f"{self.seed}/{self.epoch}").shuffle(order)
        return order
