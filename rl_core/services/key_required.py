"""ASGI middleware that answers only those who know the server's key.

A program gives it as `Authorization: Bearer KEY`; a browser gets it by the login page, and gives it
as a cookie that no script can read. A plain link of another page, such as of a report, sends the
cookie along; no other request of another site does.
"""

from __future__ import annotations

import hmac
from http.cookies import CookieError, SimpleCookie

from rl_core.services.login_page import KEEP_AS_COOKIE, LOGIN_PATH, WithLoginPage
from rl_core.services.own_pages import App, Receive, Scope, Send

MAX_KEY_BYTES = 1024
_OPEN_PATHS = ("/health",)


class KeyRequired:
    """Refuses requests without the key with 401; `/health` and the login page are open to all."""

    def __init__(self, app: App, key: str, server: str) -> None:
        """Wrap an app. Args: server: kind of server, which names the cookie."""
        self._app, self._key, self._cookie = app, key, f"rl-train-{server}"
        self._page = WithLoginPage(self._log_in, KEEP_AS_COOKIE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, log in, or refuse."""
        if scope["type"] == "http" and scope["path"] == LOGIN_PATH:
            await self._page(scope, receive, send)
        elif scope["type"] == "lifespan" or self._may_pass(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": "the key is missing"})
        else:
            said = (
                b"the key is missing or wrong: Authorization: Bearer KEY. A browser logs in by the "
            )
            said += b"address that was printed when this server started, or by rl-train open\n"
            await _answer(send, 401, said, [(b"www-authenticate", b"Bearer")])

    def _may_pass(self, scope: Scope) -> bool:
        if scope["path"] in _OPEN_PATHS:
            return True
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        kind, _, given = headers.get(b"authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_right(given.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get(b"cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and self._is_right(cookie.value)

    def _is_right(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._key.encode())

    async def _log_in(self, scope: Scope, receive: Receive, send: Send) -> None:
        given, more = b"", scope["method"] == "POST"
        while more and len(given) <= MAX_KEY_BYTES:
            message = await receive()
            given += message.get("body", b"")
            more = message.get("more_body", False)
        if more or not self._is_right(given.decode("utf-8", "replace")):
            await _answer(send, 401, b"the key is wrong\n", [])
            return
        cookie = f"{self._cookie}={self._key}; Path=/; HttpOnly; SameSite=Lax"
        await _answer(send, 204, b"", [(b"set-cookie", cookie.encode())])


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
