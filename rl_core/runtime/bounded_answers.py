"""HTTP answers read up to a size and a deadline: a server may send without end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import httpx


class AnswerTooLong(ValueError):
    """A server sent more than its answer may hold."""


def read_bounded(response: httpx.Response, max_bytes: int, deadline: float) -> bytes:
    """Return the body of a streamed response.

    Args: deadline: by `time.monotonic()`.
    Raises: AnswerTooLong, and TimeoutError past the deadline.
    """
    body = bytearray()
    for part in response.iter_bytes():
        body += part
        if len(body) > max_bytes:
            raise AnswerTooLong(f"the answer has more than {max_bytes} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the server did not answer in time")
    return bytes(body)
