"""Results of environments, whose methods may be coroutines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


def result_of(value: T | Awaitable[T]) -> T:
    """Return what a method of an environment answered, after waiting for it if it is a coroutine.

    Must not be called on a running event loop.
    """
    if inspect.isawaitable(value):
        return asyncio.run(_waited(value))
    assert not isinstance(value, Awaitable)
    return value


async def _waited(value: Awaitable[T]) -> T:
    return await value
