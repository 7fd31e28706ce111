"""In place of Python: asks for a fork that runs the rest of the command line, and lives as long as
it does.

Usage: client.py ADDRESS [-u] SCRIPT [ARGUMENT...]
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys
import time

PATIENCE_S = 120.0
"""How long the server may take to import, on a full machine."""


def connect(address: str) -> socket.socket:
    """Raises: OSError when nothing listens there in time."""
    end = time.monotonic() + PATIENCE_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return connection


def main(address: str, *command: str) -> None:
    """Ends with the fork, and hands signals on to it."""
    connection = connect(address)
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
    pid = int.from_bytes(connection.recv(8, socket.MSG_WAITALL), "big")
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: os.kill(pid, received))
    # Nothing is ever sent: the connection closes when the fork ends, however it does.
    connection.recv(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
