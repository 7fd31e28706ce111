"""Weights of an engine that are renewed while it samples.

The trainer pins each version to a board as soon as it has it. A rollout begins with the newest
weights there, at least those that it was asked for, and takes newer ones between two tokens. It
notes which it took where, and a rollout that is told such an order follows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from rl_core.kernels import Packed
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.train.weights.buckets import WeightVersion
from rl_core.train.weights.offer import Offer
from rl_core.train.weights.order import Order, Taken


class Board(Protocol):
    """Weights in the order in which the trainer put them down, as an engine sees them."""

    def newer(self, *, wait: bool) -> list[Offer]:
        """Return what was put down since the last call. Args: wait: until there is something."""
        ...


class InFlight:
    """The weights of one rank's engine.

    Args: board: where newer ones are found. take: loads them. held: returns the version of the
    present ones, None before the first. rank: of the engine's.
    """

    def __init__(
        self,
        board: Board,
        take: Callable[[Offer], None],
        held: Callable[[], WeightVersion | None],
        rank: int,
    ) -> None:
        self._board, self._take, self._held, self._rank = board, take, held, rank
        self._waiting: deque[Offer] = deque()
        self._policy: CausalLMPolicy | None = None
        self._ready = ExitStack()
        self._packed: Packed = {}
        self._num_steps = 0
        self._planned: deque[Taken] | None = None
        self.taken: list[Taken] = []
        """Weights that were taken since the rollout began, beyond those that it was asked for."""

    def begin(self, version: WeightVersion, order: Order | None) -> None:
        """Begin a rollout, with weights of this version or newer. Args: order: to follow; None
        takes what comes."""
        self._num_steps, self.taken = 0, []
        self._planned = None if order is None else deque(order.ranks.get(self._rank, ()))
        while not self._reached(version):
            self._take_next()
        if self._is_due():
            self._take_due()

    def settle(self, version: WeightVersion) -> None:
        """Take weights until they are of this version, for an evaluation."""
        while self._held() != version:
            self._take_next()

    @contextmanager
    def of(self, policy: CausalLMPolicy) -> Iterator[InFlight]:
        """Make a policy ready to decode during the block, and again after each renewal."""
        self._policy = policy
        with ExitStack() as self._ready:
            self._packed = self._ready.enter_context(policy.ready_to_decode())
            yield self
        self._policy = None

    def note(self) -> tuple[int, tuple[Taken, ...]]:
        """Return this rank, and what it took in the present rollout, as in the column `TAKEN`."""
        return self._rank, tuple(self.taken)

    @property
    def version(self) -> int:
        """Number of the weights."""
        held = self._held()
        assert held is not None  # a rollout has begun
        return held.number

    @property
    def packed(self) -> Packed:
        """Packed products of the weights."""
        return self._packed

    def is_due(self) -> bool:
        """Return True if newer weights are to be loaded after this decoding step, or after this
        answer of a server."""
        self._num_steps += 1
        return self._is_due()

    def load(self) -> None:
        """Load the newer weights. In a block of `of` the policy is ready to decode with them."""
        self._ready.close()
        self._take_due()
        if self._policy is not None:
            self._packed = self._ready.enter_context(self._policy.ready_to_decode())

    def _is_due(self) -> bool:
        if self._planned is not None:
            return bool(self._planned) and self._planned[0].at == self._num_steps
        self._waiting.extend(self._board.newer(wait=False))
        # Averaged weights are for an evaluation, which will ask for them.
        return bool(self._waiting) and not self._waiting[0].version.averaged

    def _take_due(self) -> None:
        """Take all that is due, and note it."""
        while self._is_due():
            if self._planned is None:
                self._take_next()
            else:
                wanted = self._planned.popleft().version
                while self.version < wanted:
                    self._take_next()
        self.taken.append(Taken(self._num_steps, self.version))

    def _take_next(self) -> None:
        while not self._waiting:
            self._waiting.extend(self._board.newer(wait=True))
        self._take(self._waiting.popleft())

    def _reached(self, version: WeightVersion) -> bool:
        held = self._held()
        return held is not None and not held.averaged and held.number >= version.number
