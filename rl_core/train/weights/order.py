"""The order in which newer weights were taken while a rollout went on.

It is what depends on time in an asynchronous run: given the same order, the same tokens are drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

TOKEN_VERSIONS = "token_versions"
"""Column of a rollout: number of the weights that drew each token, [B, T]."""
TAKEN = "taken"
"""Object column of a rollout: the rank that sampled the row, and what it took meanwhile."""


@dataclass(frozen=True)
class Taken:
    """Weights that one rank took."""

    at: int
    """Number of decoding steps that the rank had done in this rollout, or of rounds of requests to
    its server."""
    version: int
    """Number of the weights."""


@dataclass(frozen=True)
class Order:
    """The weights that ranks took during one rollout, beyond those with which they were asked to
    begin."""

    ranks: Mapping[int, tuple[Taken, ...]]

    def counted_from(self, version: int) -> Order:
        """Return the order with numbers of weights counted from `version`; of a negative one, back
        again. A resumed run counts its weights anew."""
        ranks = {}
        for rank, taken in self.ranks.items():
            ranks[rank] = tuple(Taken(one.at, one.version - version) for one in taken)
        return Order(ranks)

    @classmethod
    def of_column(cls, taken_B: Iterable[tuple[int, tuple[Taken, ...]]]) -> Order:
        """Return the order that the column `TAKEN` tells."""
        return cls(dict(sorted(taken_B)))

    def to_lists(self) -> dict[str, list[list[int]]]:
        """Return it as JSON holds it: by rank, `at` and `version` of each taking."""
        lists = {}
        for rank, taken in self.ranks.items():
            lists[str(rank)] = [[one.at, one.version] for one in taken]
        return lists

    @classmethod
    def of_lists(cls, ranks: Mapping[str, Sequence[Sequence[int]]]) -> Order:
        """Return what `to_lists` gave."""
        found = {}
        for rank, taken in ranks.items():
            found[int(rank)] = tuple(Taken(at, version) for at, version in taken)
        return cls(found)
