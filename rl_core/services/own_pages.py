"""ASGI middleware that answers programs and the server's own pages, and no page of another site.

A page that is open in a browser may send requests to servers of the same machine. One to Prefect's
API can start a shell, so what comes from a foreign page is refused, and so is what was addressed to
another name: a site may point its own name at this machine.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

ANY_HOST = "*"
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
_POLICY_VIOLATION = 1008


def hosts_served() -> list[str]:
    """Return the names under which a server of this machine is addressed: its own and those of
    `RL_TRAIN_ALLOWED_HOSTS`."""
    named = os.environ.get("RL_TRAIN_ALLOWED_HOSTS", "").split(",")
    return [*LOCAL_HOSTS, *filter(None, map(str.strip, named))]


class OwnPagesOnly:
    """Refuses requests with a foreign `Origin` or `Host` with 403."""

    def __init__(self, app: App, hosts: Iterable[str]) -> None:
        """Wrap an app.

        Args: hosts: names under which this server may be addressed, without a port; `*` allows
        every name.
        """
        self.app, self.hosts = app, frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        fault = self.fault({name: value.decode("latin-1") for name, value in scope["headers"]})
        if fault is None:
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY_VIOLATION, "reason": fault})
        else:
            headers = [(b"content-type", b"text/plain; charset=utf-8")]
            await send({"type": "http.response.start", "status": 403, "headers": headers})
            await send({"type": "http.response.body", "body": fault.encode()})

    def fault(self, headers: dict[bytes, str]) -> str | None:
        """Return why a request with these headers is refused, or None."""
        host = headers.get(b"host", "")
        name = urlsplit(f"//{host}").hostname or ""
        if ANY_HOST not in self.hosts and name not in self.hosts:
            return f"this server is not addressed as {name!r}; RL_TRAIN_ALLOWED_HOSTS adds names"
        origin = headers.get(b"origin")
        if origin is None:
            return None
        page = urlsplit(origin)
        if page.netloc == host or page.hostname in self.hosts:
            return None
        return f"pages of {origin} may not use this server; RL_TRAIN_ALLOWED_HOSTS adds names"
