"""In place of Python: asks for a fork that runs the rest of the command line, and lives as long as
it does. Where nobody forks, it becomes Python.

Usage: client.py ADDRESS [-u] SCRIPT [ARGUMENT...]
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys

PATIENCE_S = 40.0
"""Seconds that the server may take to import and fork; Ray takes a worker for dead after 60."""


def main(address: str, *command: str) -> None:
    """End with the fork, and hand signals on to it."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        pid = ask(connection, address, command)
    except OSError:
        os.execv(sys.executable, [sys.executable, *command])
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: os.kill(pid, received))
    connection.settimeout(None)
    # Nothing is ever sent: the connection closes when the fork ends, however it does.
    connection.recv(1)


def ask(connection: socket.socket, address: str, command: tuple[str, ...]) -> int:
    """Return the process id of the fork. Raises: OSError when there is no server, or it ends or
    stops before it forks."""
    connection.settimeout(PATIENCE_S)
    connection.connect(address)
    told = {
        "command": [part for part in command if part != "-u"],
        "env": dict(os.environ),
        "folder": os.getcwd(),
    }
    body = json.dumps(told).encode()
    streams = array.array("i", [0, 1, 2])
    head = len(body).to_bytes(8, "big")
    connection.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    connection.sendall(body)
    answer = connection.recv(8, socket.MSG_WAITALL)
    if len(answer) < 8:
        raise ConnectionResetError("the server ended")
    return int.from_bytes(answer, "big")


if __name__ == "__main__":
    main(*sys.argv[1:])
