"""Environment calls in parallel to the decoding: each call has its own deadline, and its outcome is
reported once.

A coroutine runs on one event loop, anything else in its own thread: neither waits for the other
environments, and the decoding waits for none of them. A thread cannot be killed, so one that
exceeds its deadline is abandoned; it is a daemon, and its result is dropped.
"""

from __future__ import annotations

import asyncio
import inspect
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from rl_core.envs.faults import described

BLOCKED_GRACE_S = 10.0
"""Seconds after a deadline until an event loop without activity counts as blocked."""


class EnvCall(StrEnum):
    """Kind of call of an environment."""

    INIT = "init"
    """Create the environment, and pass it the prompt."""
    STEP = "step"
    """Pass it a reply."""
    CLOSE = "close"
    """Read its metrics and release its resources."""


@dataclass(frozen=True)
class Outcome:
    """Result of one call."""

    row: int
    kind: EnvCall
    value: object = None
    error: str | None = None
    """Reason of the failure; None if it succeeded."""
    elapsed_s: float = 0.0
    timed_out: bool = False


class EnvCalls:
    """The running calls. Used from one thread; a context manager that ends its event loop."""

    def __init__(self, at_once: int) -> None:
        """Create the calls' event loop and threads.

        Args: at_once: maximum number of concurrent calls; an environment class may set a lower
        number for itself (`max_concurrent_steps`). Other calls wait, and so do their deadlines.
        """
        self._at_once = at_once
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._pending: dict[tuple[int, EnvCall], float] = {}
        self._start_loop()

    def submit(
        self,
        row: int,
        kind: EnvCall,
        work: Callable[..., object],
        *args: object,
        timeout_s: float,
        owner: object = None,
    ) -> None:
        """Start a call.

        Args: row: row that the call belongs to. owner: the environment's class, for its own limit.
        """
        self._pending[row, kind] = timeout_s
        call = self._call(row, kind, partial(work, *args), timeout_s, owner)
        self._loop.call_soon_threadsafe(self._spawn, call)

    def pending(self, *kinds: EnvCall) -> int:
        """Return the number of unreported calls of these kinds, or of all kinds if none is
        given."""
        return sum(not kinds or kind in kinds for _, kind in self._pending)

    def collect(self, wait_s: float | None) -> list[Outcome]:
        """Return the outcomes since the last call, in order of rows, after waiting for the first
        one.

        Args: wait_s: longest wait; None waits until something ends, or nothing is running.
        """
        if not self._pending:
            return []
        patience = max(self._pending.values()) + BLOCKED_GRACE_S
        try:
            found = [self._outcomes.get(timeout=patience if wait_s is None else max(0.0, wait_s))]
        except queue.Empty:
            if wait_s is None:
                return self._give_up(patience)
            return []
        with suppress(queue.Empty):
            while True:
                found.append(self._outcomes.get_nowait())
        heard = []
        for one in found:
            if self._pending.pop((one.row, one.kind), None) is not None:
                heard.append(one)
        return sorted(heard, key=lambda one: one.row)

    def __enter__(self) -> EnvCalls:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(BLOCKED_GRACE_S)

    def _start_loop(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._slots: dict[object, asyncio.Semaphore] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(
            target=_run, args=(self._loop,), name="environments", daemon=True
        )
        self._thread.start()

    def _give_up(self, waited_s: float) -> list[Outcome]:
        """Abandon an event loop that a coroutine blocks, since nothing was reported for longer than
        any deadline."""
        error = (
            f"no sign of life for {waited_s:g} s: a coroutine of an environment blocks the event "
            "loop"
        )
        lost = []
        for row, kind in self._pending:
            lost.append(Outcome(row, kind, error=error, timed_out=True))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._pending, self._outcomes = {}, queue.SimpleQueue()
        self._start_loop()
        return sorted(lost, key=lambda one: one.row)

    def _spawn(self, call: Coroutine[object, None, None]) -> None:
        task = self._loop.create_task(call)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(
        self, row: int, kind: EnvCall, work: Callable[[], object], timeout_s: float, owner: object
    ) -> None:
        outcomes = self._outcomes
        # The narrower limit comes first, so that a call waiting for it does not hold a slot that
        # others need.
        async with (
            self._slot(owner, _own_limit(owner, self._at_once)),
            self._slot("all", self._at_once),
        ):
            start = time.perf_counter()
            task = asyncio.ensure_future(_work(work))
            # Not wait_for, which would wait for a coroutine that refuses to be cancelled.
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
            elapsed_s = time.perf_counter() - start
        if not done:
            task.cancel()
            error = f"{kind} took longer than {timeout_s:.3g} s"
            outcomes.put(Outcome(row, kind, None, error, elapsed_s, timed_out=True))
            return
        value, error = task.result()
        outcomes.put(Outcome(row, kind, value, error, elapsed_s))

    def _slot(self, owner: object, limit: int) -> asyncio.Semaphore:
        return self._slots.setdefault(owner, asyncio.Semaphore(limit))


def _own_limit(owner: object, otherwise: int) -> int:
    return getattr(owner, "max_concurrent_steps", None) or otherwise


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        loop.close()


async def _work(work: Callable[[], object]) -> tuple[object, str | None]:
    """Return the result of the work, or its error as text."""
    try:
        if _is_coroutine(work):
            coming = work()
            assert inspect.isawaitable(coming)
            return await coming, None
        value, error = await _in_thread(work)
        if error is None and inspect.isawaitable(value):
            return (await value, None)
        return (value, error)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # whatever an environment raises is its own row's failure
        return None, described(error)


def _is_coroutine(work: Callable[[], object]) -> bool:
    return inspect.iscoroutinefunction(work.func if isinstance(work, partial) else work)


def _in_thread(work: Callable[[], object]) -> Awaitable[tuple[object, str | None]]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[object, str | None]] = loop.create_future()

    def settle(result: tuple[object, str | None]) -> None:
        if not future.done():
            future.set_result(result)

    def run() -> None:
        try:
            result: tuple[object, str | None] = work(), None
        except BaseException as error:  # as above; a thread has nobody else to tell
            result = None, described(error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result)

    threading.Thread(target=run, name="environment", daemon=True).start()
    return future
