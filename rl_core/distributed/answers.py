"""Waiting for what Ray computes, from which a signal's exception always comes through.

`ray.get` and `ray.wait` run signal handlers while they wait, and may drop what one raises to end
the run if that is not a KeyboardInterrupt, such as Prefect's TerminationSignal. Here the main
thread waits in Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from ray import ObjectRef

A = TypeVar("A")


def answer_of(ref: ObjectRef[A], timeout_s: float | None = None) -> A:
    """Return the answer of a call, or an object.

    Raises: what `ray.get` raises for a call that failed; TimeoutError after `timeout_s`.
    """
    return ref.future().result(timeout_s)


def answers_of(refs: Sequence[ObjectRef[A]]) -> list[A]:
    """Return the answers of many calls that run at once, in order. Raises: as `answer_of`."""
    import ray

    found: Future[list[A]] = Future()

    def get() -> None:
        try:
            found.set_result(ray.get(list(refs)))
        except BaseException as error:
            found.set_exception(error)

    # Handlers of signals run in the main thread alone. A future for each would cost more.
    Thread(target=get, name="answers", daemon=True).start()
    return found.result()
