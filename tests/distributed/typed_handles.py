"""What a type checker says of calls on handles; read by `test_typed_handles.py`, never run."""

from __future__ import annotations

from typing import assert_type

from rl_core.distributed.handles import PendingCall, Remote, per_rank, submit
from rl_core.ranks.dispatch import Execute, distributed


class Counter:
    @distributed(execute=Execute.RANK_ZERO)
    def total(self, start: int, *, doubled: bool = False) -> int:
        return start * 2 if doubled else start

    def memory(self) -> int:
        return 0


def right(counter: Remote[Counter]) -> None:
    assert_type(counter.total(1, doubled=True), int)
    assert_type(per_rank(counter.memory)(), list[int])
    assert_type(submit(counter.total, 1), PendingCall[int])
    assert_type(submit(counter.total, 1).result(), int)
    assert_type(submit(per_rank(counter.memory)).result(), list[int])


def wrong(counter: Remote[Counter]) -> None:
    counter.totl(1)  # wrong
    counter.total("1")  # wrong
    counter.total()  # wrong
    counter.total(1, double=True)  # wrong
    submit(counter.total, "1")  # wrong
    submit(counter.totl, 1)  # wrong
    per_rank(counter.memory)(1)  # wrong
    counter.total(1).result()  # wrong
