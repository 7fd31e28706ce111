"""Batches of rows that come and go between two tokens, for whoever draws the tokens.

Axes: R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from rl_core.kernels import Packed
from rl_core.models.decoding.continuous.joining import JoinedRows
from rl_core.models.decoding.decode import may_be_batched
from rl_core.models.decoding.request import Request
from rl_core.models.policy import TokenPolicy


class DrawnRow(Protocol):
    """A reply that is being decoded."""

    @property
    def is_wanted(self) -> bool:
        """False if nobody waits for it any more."""
        ...

    def draw_from(self, logits_1V: Tensor) -> tuple[Tensor, bool]:
        """Draw the next token. Returns: it, [1], and True if more may follow."""
        ...


R = TypeVar("R", bound=DrawnRow)


class JoinedBatches(Generic[R]):
    """Rows in as few batches as they can share. Args: packed: of the policy that is ready to
    decode."""

    def __init__(
        self, policy: TokenPolicy, pad_id: int, device: torch.device, packed: Packed
    ) -> None:
        self.policy, self.pad_id, self.device, self.packed = policy, pad_id, device, packed
        self._batches: list[_Batch[R]] = []

    @property
    def rows(self) -> list[R]:
        """Rows that are being decoded."""
        return [row for batch in self._batches for row in batch.rows]

    def begin(self, requests: Sequence[Request], rows: Sequence[R]) -> None:
        """Read prompts, each once. Args: rows: those that continue them, request by request; they
        join a batch where they can."""
        if may_be_batched(self.policy):
            self._read(requests, rows)
            return
        first = 0
        for request in requests:
            self._read([request], rows[first : first + request.num_replies])
            first += request.num_replies

    def _read(self, requests: Sequence[Request], rows: Sequence[R]) -> None:
        joined = JoinedRows.of(self.policy, requests, self.pad_id, self.device, self.packed)
        new = _Batch(joined, [*rows])
        for batch in self._batches:
            if batch.takes(new):
                batch.joined.join([joined])
                batch.rows += rows
                return
        self._batches.append(new)

    def step(self, failed: Callable[[Sequence[R], Exception], None]) -> None:
        """Draw a token of each row, and read those of the rows that go on. Args: failed: told of
        the rows of a batch that cannot go on, and why."""
        for batch in self._batches:
            try:
                batch.step(self.policy)
            except Exception as error:  # whatever a model raises; the other batches go on
                failed(batch.rows, error)
                batch.rows = []
        self._batches = [batch for batch in self._batches if batch.rows]


@dataclass
class _Batch(Generic[R]):
    joined: JoinedRows
    rows: list[R]

    def takes(self, other: _Batch[R]) -> bool:
        """Return True if the rows of another batch can join this one."""
        return (
            self.joined.can_be_joined
            and other.joined.can_be_joined
            and type(self.joined.read) is type(other.joined.read)
        )

    def step(self, policy: TokenPolicy) -> None:
        self._keep([place for place, row in enumerate(self.rows) if row.is_wanted])
        if not self.rows:
            return
        logits_RV = policy.logits(self.joined.states_RH)
        drawn = []
        for place, row in enumerate(self.rows):
            drawn.append(row.draw_from(logits_RV[place : place + 1]))
        tokens_R = torch.cat([token for token, _ in drawn])
        staying = [place for place, (_, goes_on) in enumerate(drawn) if goes_on]
        self._keep(staying)
        if staying:
            self.joined.step(tokens_R[torch.tensor(staying, device=tokens_R.device)])

    def _keep(self, places: list[int]) -> None:
        """Keep these rows, ascending."""
        if len(places) < len(self.rows):
            self.rows = [self.rows[place] for place in places]
            if places:
                self.joined.keep(places)
