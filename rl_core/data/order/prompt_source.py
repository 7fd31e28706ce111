"""Order of prompts in training: shuffled each epoch, resumable to the row."""

import random
from array import array
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from rl_core.data.order.registry import data_sources
from rl_core.data.store.views import places_of
from rl_core.errors import DataError

T = TypeVar("T")


class DataSource(Protocol[T]):
    """Source from which a trainer draws its prompts."""

    def next_batch(self) -> list[T]:
        """Return the next batch; the source never ends."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Return the position as plain values."""
        ...

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Continue with exactly the batch after the saved one."""
        ...


class PromptSource(Generic[T]):
    """Endless batches of `items`; each epoch is a new shuffle, and a last partial batch is dropped.

    An epoch's order depends only on `seed` and the epoch's number, so the state is two numbers.
    Raises: DataError when there are fewer items than one batch takes.
    """

    def __init__(self, items: Sequence[T], batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise DataError(f"batch size {batch_size}: expected at least 1")
        if batch_size > len(items):
            keys = "training.prompts_per_step and rollout.extra_prompts"
            raise DataError(
                f"a batch of {batch_size} prompts is more than the {len(items)} rows there are; "
                f"give more rows, or lower {keys}"
            )
        self.items = items
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.position = 0
        self._order = self._epoch_order()

    def next_batch(self) -> list[T]:
        """Return the next `batch_size` items, starting a new epoch when too few of this one are
        left."""
        if self.position + self.batch_size > len(self.items):
            self.epoch += 1
            self.position = 0
            self._order = self._epoch_order()
        chosen = self._order[self.position : self.position + self.batch_size]
        self.position += self.batch_size
        return [self.items[i] for i in chosen]

    def state_dict(self) -> dict[str, int]:
        """Return the position; `load_state_dict` continues with exactly the next batch."""
        return {
            "epoch": self.epoch,
            "position": self.position,
            "seed": self.seed,
            "num_items": len(self.items),
        }

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue from a saved state. Raises: DataError when it belongs to other rows or another
        seed."""
        for name, here in (("seed", self.seed), ("num_items", len(self.items))):
            if state[name] != here:
                expected = "resume with the data and seed of the checkpoint, or start a new run"
                raise DataError(
                    f"the saved data position has {name} {state[name]}, this run has {here}; "
                    f"{expected}"
                )
        self.epoch = state["epoch"]
        self.position = state["position"]
        self._order = self._epoch_order()

    def _epoch_order(self) -> "array[int]":
        order = places_of(len(self.items))
        random.Random(f"{self.seed}/{self.epoch}").shuffle(order)
        return order


# Not as a decorator, through which type checkers would lose that the class is generic.
data_sources.register("prompts")(PromptSource)
