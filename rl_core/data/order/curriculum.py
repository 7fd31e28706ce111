"""Curriculum: prompts are drawn by their pass rate, those solved half of the time most often."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from rl_core.data.store.key_table import UidPlaces
from rl_core.errors import DataError

T = TypeVar("T")


class CurriculumSource(Generic[T]):
    """Endless batches of different items, drawn by `curriculum_weights` of the observed rewards.

    A batch depends only on the seed, its number and the counts.
    Args: floor: the least weight of an item, as a share of the largest possible. pass_mark: reward
    from which a reply counts as correct.
    Raises: DataError when there are fewer items than one batch takes.
    """

    def __init__(
        self,
        items: Sequence[T],
        uids: Sequence[str],
        batch_size: int,
        seed: int,
        *,
        floor: float,
        pass_mark: float,
    ) -> None:
        import torch

        if not 1 <= batch_size <= len(items):
            raise DataError(
                f"a batch of {batch_size} prompts out of {len(items)} rows; expected 1 to "
                f"{len(items)}"
            )
        self.items, self.batch_size, self.seed = items, batch_size, seed
        self.floor, self.pass_mark = floor, pass_mark
        self.uids, self.place_of = uids, UidPlaces(uids)
        self.num_right_P = torch.zeros(len(items), dtype=torch.long)
        self.num_tried_P = torch.zeros(len(items), dtype=torch.long)
        self.num_batches = 0

    def next_batch(self) -> list[T]:
        """Return the next `batch_size` items, no item twice."""
        import torch

        from rl_core.algorithms.shaping import curriculum_weights

        weights_P = curriculum_weights(self.num_right_P, self.num_tried_P, floor=self.floor)
        digest = hashlib.sha256(f"{self.seed}:curriculum:{self.num_batches}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
        self.num_batches += 1
        places = torch.multinomial(weights_P, self.batch_size, generator=generator).tolist()
        return [self.items[place] for place in places]

    def observe(self, uids: Iterable[str], rewards: Iterable[float]) -> dict[str, float]:
        """Count replies, one reward each.

        Returns: the pass rate of these replies, and the share of prompts that were ever tried.
        """
        num_right = num_tried = 0
        for uid, reward in zip(uids, rewards, strict=True):
            right, place = reward >= self.pass_mark, self.place_of[str(uid)]
            self.num_right_P[place] += right
            self.num_tried_P[place] += 1
            num_right, num_tried = num_right + right, num_tried + 1
        tried = float((self.num_tried_P > 0).double().mean())
        return {
            "curriculum/pass_rate": num_right / max(1, num_tried),
            "curriculum/tried_share": tried,
        }

    def state_dict(self) -> dict[str, object]:
        """Return the state: the number of batches, and the counts of every uid that was tried."""
        counts = {}
        for place in self.num_tried_P.nonzero().flatten().tolist():
            counts[self.uids[place]] = [int(self.num_right_P[place]), int(self.num_tried_P[place])]
        return {
            "seed": self.seed,
            "num_items": len(self.items),
            "num_batches": self.num_batches,
            "counts": counts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. Raises: DataError when it belongs to other rows or another
        seed."""
        for name, here in (("seed", self.seed), ("num_items", len(self.items))):
            if state.get(name) != here:
                expected = (
                    "resume with the data, seed and curriculum of the checkpoint, or start a new "
                    "run"
                )
                raise DataError(
                    f"the saved curriculum has {name} {state.get(name)}, this run has {here}; "
                    f"{expected}"
                )
        unknown = sorted(uid for uid in state["counts"] if uid not in self.place_of)
        if unknown:
            raise DataError(
                f"the saved curriculum counts rows that are not here, the first {unknown[0]!r}"
            )
        self.num_batches = state["num_batches"]
        self.num_right_P.zero_()
        self.num_tried_P.zero_()
        for uid, (right, tried) in state["counts"].items():
            self.num_right_P[self.place_of[uid]], self.num_tried_P[self.place_of[uid]] = (
                right,
                tried,
            )
