"""Ports to listen on."""

from __future__ import annotations

import socket

from rl_core.errors import ServiceError


def free_port(host: str, wanted: int = 0) -> int:
    """Return `wanted` if nobody listens there, else a free port. Raises: ServiceError for another
    machine's host."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                if port == 0:
                    raise ServiceError(
                        f"cannot listen on {host}: {error}; give an address of this machine"
                    ) from error
                continue
            return probe.getsockname()[1]
    raise AssertionError("unreachable")
