"""Meeting of ranks in torch's key-value store, which listens on one address instead of on all.

A `TCPStore` that opens its own socket listens on every interface and asks nobody for a password.
Given a socket that is bound already, it listens there.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""Environment variables by which gloo and NCCL are told where to listen."""


def bound_socket(host: str, port: int = 0) -> socket.socket:
    """Return a listening socket of one address.

    Args: host: an IP address of this machine. port: 0 takes a free one. Raises: OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def open_store(
    host: str, port: int, num_members: int | None, *, is_master: bool, timeout: timedelta
) -> TCPStore:
    """Open the store at an address, or join it there.

    Args: host: IP address of the master. port: 0 lets the master take a free one. num_members:
    members that the master waits for; None waits for nobody. timeout: longest wait for the others.
    Raises: OSError when the address cannot be bound; torch's DistStoreError when the others do not
    come.
    """
    import torch.distributed as dist

    listening = bound_socket(host, port) if is_master else None
    try:
        return dist.TCPStore(  # pyright: ignore[reportPrivateImportUsage]
            host,
            port if listening is None else listening.getsockname()[1],
            num_members,
            is_master,
            timeout=timeout,
            wait_for_workers=num_members is not None,
            master_listen_fd=None if listening is None else listening.fileno(),
        )
    finally:
        if listening is not None:
            listening.detach()  # the store's own from here on, also where its start failed


def listen_on_interface_of(host: str) -> None:
    """Keep the sockets of gloo and NCCL on the interface that has an address of this machine; what
    the user set stays.

    By themselves they take the address of this machine's own name, which on Debian and Ubuntu is
    127.0.1.1 and reaches no other machine.
    """
    import psutil

    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address.partition("%")[0] == host for one in addresses):
            for variable in INTERFACE_VARIABLES:
                os.environ.setdefault(variable, name)
            return
