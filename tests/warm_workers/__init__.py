"""Ray workers that are forked from a process which has imported what they need.

A fresh worker takes five processor seconds to import torch and transformers, and the suite starts
hundreds. Here Ray starts `client.py` in place of Python; it has `server.py` fork, and the fork
becomes the worker. What runs in it, and how it ends, is as ever. Clusters that tests start by a
command, as users do, have workers of the ordinary kind.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent


@contextmanager
def warm_workers() -> Iterator[str]:
    """For the block, what `runtime_env` takes as `py_executable`. It may be used at once."""
    with tempfile.TemporaryDirectory(prefix="rl-train-warm-") as folder:
        address = str(Path(folder) / "socket")
        server = subprocess.Popen(
            [sys.executable, str(HERE / "server.py"), address], cwd=HERE.parents[1]
        )
        try:
            # Neither site packages nor the user's settings: it is there at once.
            yield shlex.join([sys.executable, "-I", "-S", str(HERE / "client.py"), address])
        finally:
            server.kill()
            server.wait()
