"""Check of the driver's machine: Ray wants it to be a node of the cluster."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from rl_core.errors import ServiceError, Unreachable

CONNECT_S = 5.0


def check_driver(address: str) -> None:
    """Check that the cluster answers, and that this machine is a node of it.

    Ray itself repeats its question for minutes, or aborts the process. Raises: ServiceError saying
    how to get a driver onto a node; Unreachable when nobody answers.
    """
    if address.startswith("ray://"):
        host = urlsplit(address).hostname or "HEAD"
        raise ServiceError(
            f"Ray address {address}: a run is no Ray client; start it on a node of the cluster, "
            f"with {host}:6379 as the address, or by `ray job submit`"
        )
    if address == "local":
        return
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        _check_answers(address, host.strip("[]"), int(port))
    if not _has_raylet(port if host else None):
        join = "--address=HEAD:6379" if address == "auto" else f"--address={address}"
        raise ServiceError(
            f"Ray address {address}: this machine is no node of that cluster; start the command on "
            f"one of its nodes, by `ray job submit`, or make this machine one without work: "
            f"ray start {join} --num-cpus=0 --num-gpus=0"
        )


def _check_answers(address: str, host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        raise Unreachable(
            f"no Ray cluster answers at {address} ({error.strerror or error}); `ray status "
            "--address` asks it"
        ) from error


def _has_raylet(port: str | None) -> bool:
    """Return True if a node of Ray runs on this machine. Args: port: of the cluster; None for any
    cluster."""
    import psutil

    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] != "raylet":
            continue
        options = process.info["cmdline"]
        if options is None:
            return True  # another user's: nothing speaks against it
        # One that has ended, and waits to be taken note of, has no options.
        named = [one.partition("=")[2] for one in options if one.startswith("--gcs-address=")]
        if named and (port is None or named[0].endswith(f":{port}")):
            return True
    return False
