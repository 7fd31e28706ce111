"""Check of the machines that addresses in rows lead to: public ones, and those that the user names.

Rows come from anywhere. An address in one must not make this machine read from its own services or
its network's, whatever a name resolves to and wherever a redirect leads. So every connection is
checked when it is opened, by the IP address that it goes to.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aiohttp import ClientSession

VARIABLE = "RL_TRAIN_MEDIA_HOSTS"
"""Environment variable with the names, separated by commas, of further hosts."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class NotPublic(OSError):
    """A connection that an address in a row may not open."""


def is_public(address: str) -> bool:
    """Return True if an IP address belongs to a machine of the public internet."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return ip.is_global and not ip.is_multicast


def named_hosts() -> list[str]:
    """Return the hosts of `RL_TRAIN_MEDIA_HOSTS`."""
    return [*filter(None, map(str.strip, os.environ.get(VARIABLE, "").split(",")))]


async def public_session(**options: Any) -> ClientSession:
    """Return an HTTP client session whose connections lead to public or named hosts alone.

    Args: options: of `aiohttp.ClientSession`.
    """
    from aiohttp import ClientSession, TCPConnector

    return ClientSession(connector=TCPConnector(socket_factory=_checked_socket), **options)


def _checked_socket(address_info: Any) -> socket.socket:
    """Return an unconnected socket for an address. Raises: NotPublic."""
    family, kind, protocol, _, place = address_info
    address = str(place[0])
    if not is_public(address) and address not in _addresses_of(named_hosts()):
        raise NotPublic(
            f"{address} is no public address; {VARIABLE}=HOST lets rows name addresses of that host"
        )
    return socket.socket(family=family, type=kind, proto=protocol)


def _addresses_of(hosts: list[str]) -> set[str]:
    found = set()
    for host in hosts:
        try:
            found |= {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
        except OSError:
            continue  # an unknown name allows nothing
    return found
