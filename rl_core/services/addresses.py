"""Servers that settings name, asked whether they are there before a command spends anything on
them.

Prefect, MLflow and Ray each wait minutes for a server that is gone, and end in a traceback.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from rl_core.errors import ServiceError
from rl_core.runtime.home import Home

CONNECT_S = 2.0
"""Seconds within which a server has to accept a connection."""
ANSWER_S = 20.0
"""Seconds that a server which accepted the connection may take to answer, on a busy machine."""
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""Start of an HTTP/2 connection with empty settings, which a gRPC server answers with its own."""
_SETTINGS_FRAME = 4


class Server(Enum):
    """A kind of server, with the environment variables that may name it, the first one wins."""

    PREFECT = ("PREFECT_API_URL",)
    MLFLOW = ("MLFLOW_TRACKING_URI",)
    RAY = ("RL_TRAIN_RAY_ADDRESS", "RAY_ADDRESS")


@dataclass(frozen=True)
class Address:
    """The address of a server, and the setting that holds it."""

    server: Server
    setting: str
    """Environment variable or recipe key."""
    url: str

    def fault(self) -> str | None:
        """Return why the server at this address cannot be used; None if it can, or if the address
        is of a kind that cannot be asked, such as a database file or `auto`."""
        try:
            return self._asked()
        except ValueError as error:  # of a host or port that cannot be read
            return f"is no address ({error})"

    def _asked(self) -> str | None:
        if self.server is Server.RAY:
            return _fault_of_ray(self.url)
        if self.url.startswith(("http://", "https://")):
            return _fault_of_http(self.server, self.url)
        parts = urlsplit(self.url)
        port = DATABASE_PORTS.get(parts.scheme.partition("+")[0])
        if port is not None and parts.hostname:
            return _fault_of_socket(parts.hostname, parts.port or port)
        return None

    def fix(self, home: Home) -> str:
        """Return what to do about a fault."""
        if self.url.rstrip("/").removesuffix("/api") in home.served_addresses():
            return "rl-train down, rl-train up"
        change = f"unset {self.setting}" if self.setting.isupper() else f"change {self.setting}"
        return f"start that server, or {change}"


DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""Schemes of the databases that MLflow can use without a server of its own, with usual ports."""


def named_addresses(*servers: Server, ray_address: str | None = None) -> list[Address]:
    """Return the addresses that the environment names, one per server at most.

    Args: ray_address: the recipe's `placement.ray_address`, which goes before `RAY_ADDRESS`.
    """
    found = []
    for server in servers:
        settings = {name: os.environ.get(name, "") for name in server.value}
        if server is Server.RAY:
            first, last = server.value
            key = "placement.ray_address"
            settings = {first: settings[first], key: ray_address or "", last: settings[last]}
        named = [(setting, url) for setting, url in settings.items() if url]
        if named:
            found.append(Address(server, *named[0]))
    return found


def check_addresses(*servers: Server, ray_address: str | None = None) -> None:
    """Ask each named server whether it is there; where none is named there is nothing to ask.

    Raises: ServiceError that names the setting, its value, and what to do.
    """
    for address in named_addresses(*servers, ray_address=ray_address):
        if (fault := address.fault()) is not None:
            fix = address.fix(Home.default())
            raise ServiceError(f"{address.setting}: {address.url} {fault}; {fix}")


def _fault_of_http(server: Server, url: str) -> str | None:
    import httpx

    from rl_core.services.catalogue import credentials

    try:
        answer = httpx.get(
            f"{url.rstrip('/')}/health",
            headers=credentials() if server is Server.PREFECT else {},
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            follow_redirects=True,
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        reason = str(error).strip() or type(error).__name__
        return f"does not answer ({reason}{_by_proxy(url)})"
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        if server is Server.MLFLOW:
            return None  # its health is public; a gateway in front says what it wants when asked
        return f"refuses ({answer.status_code}): set PREFECT_API_AUTH_STRING or PREFECT_API_KEY"
    is_page = answer.headers.get("content-type", "").startswith("text/html")
    if answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR:
        return f"answers {answer.status_code}{_by_proxy(url)}"
    if server is Server.PREFECT and (is_page or answer.status_code == httpx.codes.NOT_FOUND):
        return "is no Prefect API, whose address ends in /api"
    return None


def _by_proxy(url: str) -> str:
    """Return a remark if requests to `url` go through a proxy, which may be what fails."""
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    host = parts.hostname or ""
    if not proxy or proxy_bypass(host):
        return ""
    return f", asked through the proxy of the environment: export NO_PROXY={host}"


def _fault_of_ray(address: str) -> str | None:
    if address in ("auto", "local"):
        return None
    parts = urlsplit(address if "://" in address else f"gcs://{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None:
        return "is no address of a Ray cluster, such as 10.0.0.1:6379, ray://10.0.0.1:10001 or auto"
    return _fault_of_socket(host, port, grpc=not os.environ.get("RAY_USE_TLS", "0").strip("0"))


def _fault_of_socket(host: str, port: int, *, grpc: bool = False) -> str | None:
    """Return why nothing usable listens there.

    Args: grpc: also ask whether it speaks gRPC, as all of Ray does.
    """
    try:
        with socket.create_connection((host, port), CONNECT_S) as connection:
            if not grpc:
                return None
            connection.settimeout(ANSWER_S)
            connection.sendall(_HTTP2_PREFACE)
            frame = connection.recv(9)
    except OSError as error:
        return f"does not answer ({error.strerror or error})"
    if len(frame) < 4 or frame[3] != _SETTINGS_FRAME:
        return "is another kind of server, not Ray"
    return None
