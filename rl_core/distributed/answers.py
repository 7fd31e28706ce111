"""Waiting for what Ray computes, from which a signal's exception always comes through.

`ray.get` and `ray.wait` run signal handlers while they wait, and may drop what one raises to end
the run if that is not a KeyboardInterrupt, such as Prefect's TerminationSignal. Futures wait in
Python.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """Return the answers of calls that run at once, in order. Raises: as `answer_of`."""
    futures = [ref.future() for ref in refs]
    return [future.result() for future in futures]
