"""Ray workers that are forked from a process which has imported what they need.

A fresh worker takes many processor seconds to import torch and transformers, and a run starts
several. Here Ray starts `client.py` in place of Python; it has `server.py` fork, and the fork
becomes the worker. Without a server the client becomes an ordinary worker.
"""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
LONGEST_ADDRESS = 100
"""Bytes of a socket's path; the system's limit is 107, or 103."""


@contextmanager
def forked_workers() -> Iterator[str]:
    """Run a server for the block, and yield what `runtime_env` takes as `py_executable`.

    It may be used at once: a client waits until the server has imported everything.
    """
    with _short_folder() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = str(Path(folder) / "socket")
        listener.bind(address)
        listener.listen(64)
        server = subprocess.Popen(
            # Without the current folder, in which anyone may keep a module with the name of one
            # of Python's.
            [sys.executable, "-P", str(HERE / "server.py"), str(listener.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            # Signals to this process's group are not for its workers.
            start_new_session=True,
        )
        # Held by the server alone: without it a client is refused, instead of waiting for ever.
        listener.close()
        try:
            # Neither site packages nor the user's settings: it is there at once.
            client = shlex.join([sys.executable, "-I", "-S", str(HERE / "client.py"), address])
            with _set_up_at_once():
                yield client
        finally:
            server.kill()
            server.wait()


@contextmanager
def _set_up_at_once() -> Iterator[None]:
    """Have clusters that start in the block prepare workers by our `setup_worker.py`.

    Ray has no option for it; this replacement of a private name can go when its own script no
    longer imports Ray.
    """
    from ray._private import ray_constants

    usual = ray_constants.SETUP_WORKER_FILENAME
    # Ray joins it to a folder of its own, which an absolute path overrides.
    ray_constants.SETUP_WORKER_FILENAME = str(HERE / "setup_worker.py")
    try:
        yield
    finally:
        ray_constants.SETUP_WORKER_FILENAME = usual


def _short_folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="rl-train-")
    if len(f"{folder.name}/socket".encode()) <= LONGEST_ADDRESS:
        return folder
    folder.cleanup()
    return tempfile.TemporaryDirectory(prefix="rl-train-", dir="/tmp")
