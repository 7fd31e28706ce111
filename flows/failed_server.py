"""Failures of the Prefect server that end a command, as a sentence instead of its client's
traceback."""

from __future__ import annotations

import sys

from rl_core.runtime.home import Home

SERVERS_FAULT = 500


def failed_server(error: Exception) -> str | None:
    """Return a sentence about a request that the Prefect server failed, or did not answer; None for
    any other error, and for other servers, whose faults are said where they are asked."""
    if not {"httpx", "prefect.settings"} <= sys.modules.keys():  # it was not asked
        return None
    import httpx
    from prefect.settings import PREFECT_API_URL

    server = PREFECT_API_URL.value()
    if not isinstance(error, httpx.HTTPStatusError | httpx.TransportError) or not server:
        return None
    try:
        asked = error.request
    except RuntimeError:  # it never became a request
        return None
    if not str(asked.url).startswith(server):
        return None
    if isinstance(error, httpx.TransportError):
        how = f"did not answer ({str(error) or type(error).__name__})"
    elif error.response.status_code >= SERVERS_FAULT:
        how = f"answered {error.response.status_code}"
    else:
        return None
    return (
        f"the Prefect server {how} to {asked.method} {asked.url}; where it is this machine's, see "
        f"that the disk of {Home.default().root} has room and does not fail. What is finished is "
        "kept: the same command goes on"
    )
