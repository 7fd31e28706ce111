"""Failures of the Prefect server that end a command, as a sentence instead of its client's
traceback."""

from __future__ import annotations

import sys

from rl_core.runtime.home import Home

SERVERS_FAULT = 500


def failed_server(error: Exception) -> str | None:
    """Return a sentence about a request that a server failed, or did not answer; None for any other
    error.

    Only servers of this project's are asked by way of httpx without the error being dealt with.
    """
    if "httpx" not in sys.modules:  # nothing was asked, and its import takes a while
        return None
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        answered = error.response.status_code
        if answered < SERVERS_FAULT:
            return None
        how = f"answered {answered}"
    elif isinstance(error, httpx.TransportError):
        how = f"did not answer ({str(error) or type(error).__name__})"
    else:
        return None
    return (
        f"the Prefect server {how} to {error.request.method} {error.request.url}; where it is this "
        f"machine's, see that the disk of {Home.default().root} has room and does not fail. What "
        "is finished is kept: the same command goes on"
    )
