"""Requests that come one by one and are answered one by one, while others are being decoded
(continuous batching in a rollout)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from rl_core.kernels import Packed
from rl_core.models.decoding.continuous.equal_prompts import each_once, side_by_side
from rl_core.models.decoding.continuous.joined_batches import JoinedBatches
from rl_core.models.decoding.decode import Draw, End
from rl_core.models.decoding.request import Reply, Request, Sampling
from rl_core.models.decoding.stop_strings import TextOf
from rl_core.models.policy import TokenPolicy

JOIN_EVERY = 8
"""Number of tokens between two occasions to join: prompts that are read together take less time,
and each time the keys and values of all rows are laid out anew."""


@dataclass(frozen=True, eq=False)
class Arrival:
    """A request for one reply, with a seed of its own."""

    request: Request
    is_wanted: Callable[[], bool]
    """Returns False when nobody waits for the reply any more."""


class Answers(Protocol):
    """Replies that are being sampled."""

    @property
    def num_running(self) -> int:
        """Number of replies under way."""
        ...

    def put(self, arrivals: Sequence[Arrival]) -> None:
        """Begin with these besides the others."""
        ...

    def step(self) -> list[tuple[Arrival, Reply]]:
        """Sample for a moment. Returns: the replies that ended."""
        ...


class LocalAnswers:
    """Replies of a policy in this process; each step is a token of each.

    A reply has the random numbers of its own seed. Which bits its log-probabilities have depends on
    the rows beside it, unless the policy is exact.
    Args: packed: of the policy, which is ready to decode. text_of: as of `decode`.
    """

    def __init__(
        self,
        policy: TokenPolicy,
        sampling: Sampling,
        device: torch.device,
        packed: Packed,
        text_of: TextOf,
    ) -> None:
        self._sampling, self._text_of = sampling, text_of
        self._batches = JoinedBatches[_Row](policy, sampling.pad_id, device, packed)
        self._waiting: list[Arrival] = []
        self._num_steps = 0
        """Number of tokens since requests joined last."""

    @property
    def num_running(self) -> int:
        """Number of replies under way."""
        return len(self._batches.rows) + len(self._waiting)

    def put(self, arrivals: Sequence[Arrival]) -> None:
        """Have these join the others at the next occasion."""
        self._waiting += arrivals

    @torch.no_grad()
    def step(self) -> list[tuple[Arrival, Reply]]:
        """Draw a token of each reply."""
        self._num_steps += 1
        if self._waiting and (not self._batches.rows or self._num_steps >= JOIN_EVERY):
            self._num_steps = 0
            self._read([arrival for arrival in self._waiting if arrival.is_wanted()])
            self._waiting = []
        before = self._batches.rows
        self._batches.step(_raise)
        return [(row.arrival, row.finished()) for row in before if row.has_ended]

    def _read(self, arrivals: Sequence[Arrival]) -> None:
        """Read prompts, equal ones once."""
        if not arrivals:
            return
        requests = [arrival.request for arrival in arrivals]
        places = side_by_side(requests)
        once = each_once([requests[place] for place in places])
        self._batches.begin(once, [self._row(arrivals[place]) for place in places])

    def _row(self, arrival: Arrival) -> _Row:
        request, policy = arrival.request, self._batches.policy
        assert request.num_replies == 1 and request.seed is not None
        generator = torch.Generator(self._batches.device).manual_seed(request.seed)
        draw = Draw(self._sampling, [request.token_ids], generator, policy.is_exact)
        return _Row(arrival, draw, End(request, self._sampling, self._text_of), self._sampling)


class _Row:
    def __init__(self, arrival: Arrival, draw: Draw, end: End, sampling: Sampling) -> None:
        self.arrival, self.draw, self.end = arrival, draw, end
        self.reply = Reply([], [], sampling.cut_off(end.limit))
        self.has_ended = False

    @property
    def is_wanted(self) -> bool:
        return self.arrival.is_wanted()

    def draw_from(self, logits_1V: Tensor) -> tuple[Tensor, bool]:
        token_1, log_prob_1 = self.draw(logits_1V, [0])
        goes_on = self.end.goes_on(self.reply, int(token_1), float(log_prob_1))
        self.has_ended = not goes_on
        return token_1, goes_on

    def finished(self) -> Reply:
        (self.reply.support,) = self.draw.supports(1)
        return self.reply


def _raise(rows: Sequence[_Row], error: Exception) -> NoReturn:
    raise error
