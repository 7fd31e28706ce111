"""Mixture of several sources in one stream of batches, each with its share.

Every draw goes to the source that lags furthest behind its share (the largest `weight * draws -
drawn`), so after any number of draws each source is within one row of its share, without
randomness, and the state is a count per source.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from rl_core.data.order.prompt_source import PromptSource
from rl_core.errors import DataError

T = TypeVar("T")


class BlendedSource(Generic[T]):
    """Endless batches drawn from sources by weight; each source is shuffled separately and starts
    over when it ends.

    Args: items: the rows of each source by name. weights: positive numbers for exactly these names;
    only their ratios matter.
    Raises: DataError when names and weights differ, or a weight is not positive.
    """

    def __init__(
        self,
        items: Mapping[str, Sequence[T]],
        weights: Mapping[str, float],
        batch_size: int,
        seed: int,
    ) -> None:
        if items.keys() != weights.keys():
            raise DataError(
                f"blend: weights for {sorted(weights)}, but there are rows of {sorted(items)}; "
                "name each once"
            )
        bad = {}
        for name, weight in weights.items():
            if not 0 < weight < float("inf"):
                bad[name] = weight
        if bad or batch_size < 1:
            raise DataError(
                f"blend: weights {bad or dict(weights)} in batches of {batch_size}; expected "
                "positive numbers"
            )
        total = sum(weights.values())
        self.shares = {name: weight / total for name, weight in weights.items()}
        self.sources = {name: PromptSource(rows, 1, seed) for name, rows in items.items()}
        self.batch_size = batch_size
        self.drawn = dict.fromkeys(items, 0)

    def next_batch(self) -> list[T]:
        """Return the next `batch_size` rows."""
        return [self._draw() for _ in range(self.batch_size)]

    def state_dict(self) -> dict[str, object]:
        """Return the positions of the mixture and each of its sources."""
        states = {name: source.state_dict() for name, source in self.sources.items()}
        return {"drawn": dict(self.drawn), "shares": dict(self.shares), "sources": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. Raises: DataError when it belongs to another blend."""
        if state["shares"] != self.shares:
            raise DataError(
                f"the saved data position is of the blend {state['shares']}, this run has "
                f"{self.shares}"
            )
        for name, source in self.sources.items():
            source.load_state_dict(state["sources"][name])
        self.drawn = dict(state["drawn"])

    def _draw(self) -> T:
        num_draws = sum(self.drawn.values()) + 1
        name = max(self.shares, key=lambda one: self.shares[one] * num_draws - self.drawn[one])
        self.drawn[name] += 1
        return self.sources[name].next_batch()[0]
