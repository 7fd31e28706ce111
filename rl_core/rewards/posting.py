"""Requests to servers of rewards: JSON out, JSON back, up to a size and a deadline."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from rl_core.runtime.bounded_answers import read_bounded

if TYPE_CHECKING:
    import httpx

MAX_ANSWER_BYTES = 64 * 2**20
"""Most that is read of an answer, which holds a few numbers and reasons per sample."""


def open_client(timeout_s: float) -> httpx.Client:
    """Return a client that follows no redirect and asks no proxy."""
    import httpx

    return httpx.Client(trust_env=False, follow_redirects=False, timeout=timeout_s)


def posted(http: httpx.Client, url: str, body: object, timeout_s: float) -> Any:
    """Return the answer to a POST. Raises: httpx.HTTPError, TimeoutError or ValueError when there
    is no usable one."""
    import httpx

    start = time.monotonic()
    with http.stream("POST", url, json=body) as response:
        answer = read_bounded(response, MAX_ANSWER_BYTES, start + timeout_s)
    if not response.is_success:
        reason = answer.decode("utf-8", "replace").strip()[:300]
        if response.has_redirect_location:
            reason = f"a redirect to {response.headers['location']}, which is not followed"
        raise httpx.HTTPStatusError(
            f"{url} answered {response.status_code} after {time.monotonic() - start:.1f} s: "
            f"{reason}",
            request=response.request,
            response=response,
        )
    return json.loads(answer)
