"""Queue of the requests of running episodes that wait for the decoding, and the episodes' ends.
The endpoint's thread, those that read the agents' results and the one that decodes meet
here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rl_core.data.prepare.items import PlayedItem
from rl_core.rollout.agents.endpoint import ReplyStream
from rl_core.rollout.agents.processes import Ended
from rl_core.rollout.agents.turns import Turn, TurnLog
from rl_core.serving.engine import Asked

ROLLOUT_ENDED = "the rollout ended"
"""Error of requests that are not answered any more."""


@dataclass(eq=False)
class Waiting:
    """A request that is not answered yet."""

    play: Play
    turn: Turn
    asked: Asked
    stream: ReplyStream

    def is_wanted(self) -> bool:
        """Return False if its client is gone, or its episode is over."""
        return self.play.running and self.turn in self.play.asking


@dataclass(eq=False)
class Play:
    """An episode that an agent plays."""

    number: int
    item: PlayedItem
    group: int
    logs: Mapping[str, TurnLog]
    """Requests of each seat; one without a name where there are no seats."""
    timeout_s: float
    changed: threading.Condition
    seed: int = 0
    ended: Ended | None = None
    started_at: float | None = None
    waiting: dict[Turn, Waiting] = field(default_factory=dict)
    asking: set[Turn] = field(default_factory=set)
    """Requests that were not answered yet, those that are being decoded included."""
    sealed: bool = False
    """True when the rollout ended; nothing that the agent is still given counts."""
    _spent_s: float = 0.0
    _since: float = 0.0
    num_withdrawn: int = 0

    @property
    def turns(self) -> list[Turn]:
        """Requests of all seats."""
        return [turn for log in self.logs.values() for turn in log.turns]

    @property
    def running(self) -> bool:
        """True while the agent plays."""
        return self.started_at is not None and self.ended is None

    @property
    def agent_s(self) -> float:
        """Seconds of the agent's own time."""
        thinking = self.running and not self.asking
        return self._spent_s + (time.monotonic() - self._since if thinking else 0.0)

    def start(self) -> None:
        """Begin to count the agent's time."""
        self.started_at = self._since = time.monotonic()

    def ask(self, turn: Turn, asked: Asked, stream: ReplyStream) -> None:
        """Put a request in the queue."""
        with self.changed:
            if self.sealed:
                stream.fail(ROLLOUT_ENDED)
                return
            if not self.asking:
                self._spent_s += time.monotonic() - self._since
            self.asking.add(turn)
            self.waiting[turn] = Waiting(self, turn, asked, stream)
            self.changed.notify_all()

    def withdraw(self, turn: Turn) -> None:
        """Take a request back whose client is gone."""
        with self.changed:
            self.waiting.pop(turn, None)
            self.num_withdrawn += not self.sealed
            self._answered(turn)
            self.changed.notify_all()

    def answered(self, turn: Turn) -> None:
        """Count the agent's time again."""
        with self.changed:
            self._answered(turn)

    def delivered(self, turn: Turn) -> None:
        """Note that the agent is given the whole reply."""
        with self.changed:
            turn.delivered = not self.sealed

    def seal(self) -> None:
        """Leave the turns as they are: rows are made of them now, while the endpoint goes on."""
        with self.changed:
            self.sealed = True
            for one in self.waiting.values():
                one.stream.fail(ROLLOUT_ENDED)

    def end(self, ended: Ended) -> None:
        """Note the end; only the first counts."""
        with self.changed:
            if self.ended is None:
                self._spent_s = self.agent_s
                self.ended = ended
            self.changed.notify_all()

    def _answered(self, turn: Turn) -> None:
        if turn in self.asking:
            self.asking.discard(turn)
            if not self.asking:
                self._since = time.monotonic()


class Hall:
    """All episodes of a rollout. Args: patience_s: how long requests wait for those of others."""

    def __init__(self, plays: list[Play], changed: threading.Condition, patience_s: float) -> None:
        self.plays, self.changed, self.patience_s = plays, changed, patience_s

    def next_requests(self, at_most: int, between: Callable[[], None]) -> list[Waiting]:
        """Wait until every running episode asks, or some have asked for `patience_s`.

        Args: between: called after each change: starts and ends episodes. Returns: requests in the
        order of their episodes; none when all episodes have ended.
        """
        patient_until: float | None = None
        while True:
            between()
            with self.changed:
                running = [play for play in self.plays if play.running]
                now = time.monotonic()
                if not running:
                    if all(play.ended for play in self.plays):
                        return []
                    continue
                ready = any(play.waiting for play in running)
                if ready:
                    patient_until = patient_until or now + self.patience_s
                    if now >= patient_until or all(play.asking for play in running):
                        return self._taken(at_most)
                left_s = [p.timeout_s - p.agent_s for p in running if not p.asking]
                left_s += [patient_until - now] if ready and patient_until else []
                self.changed.wait(max(0.005, min(left_s, default=1.0)))

    def waiting_now(self, at_most: int, between: Callable[[], None]) -> list[Waiting]:
        """Return the requests that wait, without waiting for others. Args and order: as of
        `next_requests`."""
        between()
        with self.changed:
            return self._taken(at_most)

    def _taken(self, at_most: int) -> list[Waiting]:
        ready = [one for play in self.plays if play.running for one in play.waiting.values()]
        ready.sort(key=lambda one: (one.play.number, one.turn.number))
        for one in ready[:at_most]:
            del one.play.waiting[one.turn]
        return ready[:at_most]
