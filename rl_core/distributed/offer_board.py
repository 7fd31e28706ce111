"""The board to which a trainer pins its weights, for engines that take newer ones while they
sample.

A process of its own: a worker of the engine answers no calls while it samples, and looks at the
board between two tokens instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rl_core.errors import WorkerDied
from rl_core.train.weights.offer import Offer


class OfferBoard:
    """The trainer's side. Args: num_readers: ranks of the engine."""

    def __init__(self, num_readers: int) -> None:
        import ray

        options = {"num_cpus": 0, "max_restarts": 0, "max_concurrency": 2 * num_readers + 2}
        self._actor: Any = ray.remote(_Board).options(**options).remote(num_readers)

    def post(self, offer: Offer) -> None:
        """Pin up weights."""
        self._actor.post.remote(offer)

    def reader(self) -> Callable[[int], BoardReader]:
        """Return a function that makes the reader of a rank, which pickles."""
        return _Readers(self._actor)


class _Readers:
    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __call__(self, rank: int) -> BoardReader:
        return BoardReader(self._actor, rank)


class BoardReader:
    """The side of one rank of the engine, from the first weights on."""

    def __init__(self, actor: Any, rank: int) -> None:
        self._actor, self._rank, self._num_read = actor, rank, 0
        # A future, for the reason that `answers` gives.
        self._asked: Future[list[Offer]] | None = None

    def newer(self, *, wait: bool) -> list[Offer]:
        """Return what was pinned up since the last call. Args: wait: until there is something.

        Raises: WorkerDied when the board is gone.
        """
        from ray.exceptions import RayActorError

        # The answer comes when there is one, so that looking for it between two tokens asks nobody.
        asked = self._asked or self._actor.after.remote(self._rank, self._num_read).future()
        self._asked = asked
        if not wait and not asked.done():
            return []
        try:
            offers: list[Offer] = asked.result()
        except RayActorError as error:
            raise WorkerDied(
                f"the board with the rollout engine's weights ended: {error}"
            ) from error
        self._asked = None
        self._num_read += len(offers)
        return offers


class _Board:
    """Body of the actor."""

    def __init__(self, num_readers: int) -> None:
        self._offers: list[Offer] = []
        self._num_gone = 0
        """Offers that all have read, which are not kept."""
        self._num_read = [0] * num_readers
        self._changed = asyncio.Condition()

    async def post(self, offer: Offer) -> None:
        async with self._changed:
            self._offers.append(offer)
            self._changed.notify_all()

    async def after(self, rank: int, num_read: int) -> list[Offer]:
        """Return the offers after the first `num_read`, once there are any."""
        async with self._changed:
            self._num_read[rank] = num_read
            while len(self._offers) and self._num_gone < min(self._num_read):
                self._offers.pop(0)
                self._num_gone += 1
            while self._num_gone + len(self._offers) <= num_read:
                await self._changed.wait()
            return self._offers[num_read - self._num_gone :]
