"""Imports what workers need and then forks whenever `client.py` asks.

Ray reads settings that differ from worker to worker when it is imported, which therefore happens in
the fork.

Usage: server.py DESCRIPTOR, of a listening socket
"""

from __future__ import annotations

import array
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from importlib import import_module
from typing import Any, NoReturn

STREAMS = 3
"""Standard input, output and error."""


def serve(listener: socket.socket) -> None:
    """Fork for clients until this process is killed, or its parent has ended."""
    parent = os.getppid()
    import_module("rl_core.distributed.fork_server.worker_imports")
    assert "ray" not in sys.modules, "a fork imports Ray by itself"
    listener.settimeout(1.0)
    # Nobody waits for the forks.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while os.getppid() == parent:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        connection.settimeout(None)
        try:
            told, streams = _receive(connection)
        except (OSError, ValueError, IndexError):  # the client was killed as it spoke
            connection.close()
            continue
        if os.fork():
            for descriptor in (connection.detach(), *streams):
                os.close(descriptor)
        else:
            listener.close()
            try:
                connection.sendall(os.getpid().to_bytes(8, "big"))
            except OSError:  # the client has waited too long, and became a worker itself
                os._exit(0)
            _become(told, streams)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    streams = array.array("i")
    head, ancillary, *_ = connection.recvmsg(8, socket.CMSG_SPACE(STREAMS * streams.itemsize))
    streams.frombytes(ancillary[0][2])
    body = connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
    return json.loads(body), streams.tolist()


def _become(told: dict[str, Any], streams: list[int]) -> NoReturn:
    """Run the script as Python would have. The connection stays open until the process ends."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Ray ends a worker's whole process group.
    os.setpgid(0, 0)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(told["folder"])
    os.environ.clear()
    os.environ.update(told["env"])
    sys.argv = told["command"]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))
    status = 0
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    os._exit(status)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
