"""Clean-up of child processes: nothing that a process started outlives it, not even after a `kill
-9`.

Ray's agents and Prefect's embedded API server are not tied to the process that started them. A
small watcher process keeps a list of all descendants of its parent (by process id and start time)
and ends them when the parent is gone.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from select import select

import psutil

POLL_S = 0.5
FAREWELL = b"."
_watched = False


@contextmanager
def no_orphans() -> Iterator[None]:
    """If this process is killed inside the block, end all its descendants within seconds.

    A normal end of the block ends nothing: whoever started a process ends it. Nested blocks have no
    further effect.
    """
    global _watched
    if _watched:
        yield
        return
    # A session of its own keeps signals to the parent's group away; its end of input is the
    # parent's end.
    watcher = subprocess.Popen(
        # Without the current folder, in which anyone may keep a module with the name of one of
        # Python's.
        [sys.executable, "-P", __file__, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _watched = True
    try:
        yield
    finally:
        _watched = False
        watcher.communicate(FAREWELL)


def watch(parent: psutil.Process) -> None:
    """Follow the descendants of `parent` until it signs off, or is gone: then end them."""
    below: set[psutil.Process] = set()
    me = psutil.Process()
    while parent.is_running() and not select([sys.stdin], [], [], POLL_S)[0]:
        below |= _descendants(parent)
    if parent.is_running() and sys.stdin.buffer.read(1) == FAREWELL:
        return
    last = below - {me}
    while last:
        # Children are found before their parent is killed, which would hand them to another.
        found = set().union(*map(_descendants, last)) - below - {me}
        for process in last:
            _kill(process)
        below, last = below | found, found


def _descendants(process: psutil.Process) -> set[psutil.Process]:
    try:
        return set(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return set()


def _kill(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


if __name__ == "__main__" and psutil.pid_exists(int(sys.argv[1])):
    watch(psutil.Process(int(sys.argv[1])))
