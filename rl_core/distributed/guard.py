"""Ends what a private Ray cluster leaves behind when its driver is killed.

The kernel ends Ray's main processes with the driver, but the raylet's agents are grandchildren and stay. Every process
of the cluster inherits a mark in its environment; a small watcher ends all that carry it once the driver is gone.
"""

import os
import subprocess
import sys
import uuid

MARK = "RL_TRAIN_CLUSTER_MARK"

_WATCH = """
import os, signal, sys, time
mark = sys.argv[1].encode()
sys.stdin.buffer.read()
time.sleep(1)
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{name}/environ", "rb") as file:
            if int(name) != os.getpid() and mark in file.read().split(b"\\0"):
                os.kill(int(name), signal.SIGKILL)
    except OSError:
        continue
"""


def start_guard() -> subprocess.Popen[bytes] | None:
    """Mark this process's future children and watch over them; None where there is no /proc to look through."""
    if not os.path.isdir("/proc/self"):
        return None
    os.environ[MARK] = uuid.uuid4().hex
    environment = {key: value for key, value in os.environ.items() if key != MARK}
    # Its own session, so that a signal to the driver's group does not end it; its end of input is the driver's end.
    return subprocess.Popen(
        [sys.executable, "-c", _WATCH, f"{MARK}={os.environ[MARK]}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )


def end_guard(guard: subprocess.Popen[bytes] | None) -> None:
    """Let the watcher sweep once and end."""
    os.environ.pop(MARK, None)
    if guard is not None and guard.stdin is not None:
        guard.stdin.close()
        guard.wait()
