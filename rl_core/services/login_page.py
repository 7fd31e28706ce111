"""The page by which a browser gets the key of a server of this machine: `rl-train open` names it.

The key stands behind the `#` of the address, which a browser sends to no server, and is gone from
the address once the page has read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from rl_core.services.own_pages import App, Receive, Scope, Send

LOGIN_PATH = "/rl-train-login"
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>rl-train</title>
<p id="said">Logging in.</p>
<script>
const key = decodeURIComponent(location.hash.slice(1));
history.replaceState(null, "", location.pathname);
(async () => {{ {keep} }})().then(
  () => location.replace("/"),
  () => {{ document.getElementById("said").textContent = "This key is not right: rl-train open."; }}
);
</script>
</html>
"""
KEEP_FOR_PREFECT = 'localStorage.setItem("prefect-password", btoa(key));'
"""JavaScript that keeps a key as Prefect's UI keeps what is typed into its own login."""
KEEP_AS_COOKIE = """
const answer = await fetch(location.pathname, {method: "POST", body: key});
if (!answer.ok) throw answer;
"""


def login_address(url: str, key: str) -> str:
    """Return the address that logs a browser in to the server at `url`."""
    return f"{url.rstrip('/')}{LOGIN_PATH}#{key}"


@dataclass(frozen=True)
class WithLoginPage:
    """Serves the login page beside an app."""

    app: App
    keep: str = KEEP_FOR_PREFECT
    """JavaScript that keeps `key` in the browser."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for the page; the app answers all others."""
        if scope["type"] == "http" and scope["path"] == LOGIN_PATH and scope["method"] == "GET":
            page = _PAGE.format(keep=self.keep).encode()
            headers = [
                (b"content-type", b"text/html; charset=utf-8"),
                (b"cache-control", b"no-store"),
                (b"referrer-policy", b"no-referrer"),
                (
                    b"content-security-policy",
                    b"default-src 'none'; script-src 'unsafe-inline'; connect-src 'self'; "
                    b"frame-ancestors 'none'",
                ),
            ]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": page})
        else:
            await self.app(scope, receive, send)
