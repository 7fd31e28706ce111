"""Contract of a trainer: the training loop of a run, on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rl_core.data.prepare.items import Item
    from rl_core.distributed import DataProtoRef
    from schemas.recipe import Recipe


class Loop(Protocol):
    """A running training job, as a run's session drives it.

    A class usually derives from the domain's own, such as `TextTrainer`, and replaces `step` or
    `wire`; `rl_core.trainers.base.Trainer` has everything but `wire`. Its `record` of the last step
    is what a run stores as rollouts; a class without one stores none.
    """

    step_count: int
    """Number of steps so far."""
    held_out_scores: tuple[str, ...]
    """Columns of `evaluate` whose means are part of the evaluation."""

    def __init__(self, recipe: Recipe, source_model: str, items: Sequence[Item]) -> None: ...

    def build(self) -> None:
        """Start the workers."""
        ...

    def notes(self) -> list[str]:
        """Return a line for each unusual computation."""
        ...

    def prepare(self, held_out: Sequence[Item]) -> None:
        """Compute everything that needs the model before training."""
        ...

    def with_reference(self, held_out: Sequence[Item]) -> Sequence[Item]:
        """Return the held-out rows, with the reference's log-probabilities if scores need them."""
        ...

    def step(self) -> tuple[dict[str, float], DataProtoRef]:
        """Run one step. Returns: its metrics, and its rollout."""
        ...

    def evaluate(self, items: Sequence[Item], max_new_tokens: int) -> DataProtoRef:
        """Play held-out rows greedily, in order."""
        ...

    def peak_memory(self) -> int:
        """Return the largest peak memory of a training worker so far, in bytes."""
        ...

    def state_dict(self) -> dict[str, object]:
        """Return the driver's own state, which is written as JSON."""
        ...

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore `state_dict()`."""
        ...

    def save(self, folder: str) -> None:
        """Write every model's checkpoint under a folder."""
        ...

    def load(self, folder: str) -> None:
        """Restore every model from a folder."""
        ...

    def export(self, folder: str) -> None:
        """Write each model that is registered as an ordinary model folder."""
        ...

    def close(self) -> None:
        """End the workers."""
        ...
