"""The end of a batch of which only the first groups to end are wanted.

How many tokens a reply has decides, never how long anything took, so a repeated step gives up the
same groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from rl_core.models.decoding.request import Reply, Request, StopReason


class FirstToEnd:
    """The groups of a batch, and how many of their replies have not ended.

    Args: enough: number of groups after whose end the others are given up, but for those that are
    awaited; None waits for all.
    """

    def __init__(self, requests: Sequence[Request], enough: int | None) -> None:
        self._groups: list[object] = []
        for place, request in enumerate(requests):
            self._groups += [self._group(request, place)] * request.num_replies
        self._num_left = Counter(self._groups)
        self._missing = enough
        self._awaited = set()
        for place, request in enumerate(requests):
            if request.is_awaited:
                self._awaited.add(self._group(request, place))

    def is_over(self, rows: Sequence[int], staying: Collection[int], replies: list[Reply]) -> bool:
        """Take note of the replies that have just ended; mark the others if enough groups have.

        Args: rows: numbers of the replies that had a token drawn. staying: places in `rows` of
        those that go on. replies: of the whole batch.
        """
        if self._missing is None:
            return False
        for place in set(range(len(rows))).difference(staying):
            group = self._groups[rows[place]]
            self._num_left[group] -= 1
            self._missing -= not self._num_left[group]
        if self._missing > 0 or any(self._num_left[group] for group in self._awaited):
            return False
        for place in staying:
            replies[rows[place]].stop_reason = StopReason.GIVEN_UP
        return True

    @staticmethod
    def _group(request: Request, place: int) -> object:
        return ("alone", place) if request.group is None else request.group
