"""Clean-up of child processes: nothing that a process started outlives it, not even after a `kill
-9`.

Ray's agents and Prefect's embedded API server are not tied to the process that started them. A
small watcher process keeps a list of all descendants of its parent (by process id and start time)
and ends them when the parent is gone. It says so in place of the parent, and may run one command,
which says it elsewhere. A watcher that is killed itself is replaced.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from select import select

import psutil

POLL_S = 0.5
REPORT_S = 30.0
"""Seconds that the command of `run_if_killed` may take."""
LAST_WORD = (
    "the process was ended from outside: by a signal, such as the system's when memory is short, "
    "or by Ray when its node is lost; the same command continues from what is complete"
)
FAREWELL = "goodbye"
END_THE_REST = "end the rest"
RESTARTS = 5
"""Watchers that are started in the places of others that were killed."""


class _Watcher:
    """The watcher process, which another one follows if it is killed."""

    def __init__(self) -> None:
        self.last_line = FAREWELL
        self._told: dict[str, object] = {}
        self._changing, self._is_closing = threading.Lock(), False
        self._process = self._start()
        threading.Thread(target=self._replace, daemon=True, name="child reaper").start()

    def tell(self, what: Mapping[str, object]) -> None:
        """Have the watcher know something at the end of this process."""
        with self._changing:
            self._told |= what
            self._send(what)

    def close(self) -> None:
        """Sign off, and wait for what the watcher has still to do."""
        with self._changing:
            self._is_closing = True
            if self._process.poll() is not None:  # killed just now
                self._process = self._start()
                self._send(self._told)
        self._process.communicate(_line(self.last_line))

    def _start(self) -> "subprocess.Popen[bytes]":
        # A session of its own keeps signals to the parent's group away; its end of input is the
        # parent's end.
        return subprocess.Popen(
            # Without the current folder, in which anyone may keep a module with the name of one of
            # Python's.
            [sys.executable, "-P", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _replace(self) -> None:
        for _ in range(RESTARTS):
            self._process.wait()
            with self._changing:
                if self._is_closing:
                    return
                self._process = self._start()
                self._send(self._told)

    def _send(self, what: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it was killed, and the next one is told all
            self._process.stdin.write(_line(what))
            self._process.stdin.flush()


_watcher: _Watcher | None = None


@contextmanager
def no_orphans() -> Iterator[None]:
    """If this process is killed inside the block, end all its descendants within seconds.

    A normal end of the block ends nothing, unless `end_the_rest` was called: whoever started a
    process ends it. Nested blocks have no further effect.
    """
    global _watcher
    if _watcher is not None:
        yield
        return
    _watcher = _Watcher()
    try:
        yield
    finally:
        watcher, _watcher = _watcher, None
        watcher.close()


def run_if_killed(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Have a command run if this process is killed inside the block of `no_orphans`; without effect
    outside of one.

    A later command replaces an earlier one. Args: environment: is added to this process's.
    """
    # Taken now: the watcher's own is that of the start of the block.
    _tell({"command": list(command), "environment": {**os.environ, **environment}})


def end_last(pid: int) -> None:
    """Leave a process for the command of `run_if_killed`, which may need it, and end it
    afterwards."""
    _tell({"last": pid})


def end_the_rest() -> None:
    """Have all descendants of this process ended at the end of the block of `no_orphans`, but that
    of `end_last`: whoever started them cannot end them."""
    if _watcher is not None:
        _watcher.last_line = END_THE_REST


def _tell(what: Mapping[str, object]) -> None:
    if _watcher is not None:
        _watcher.tell(what)


def _line(what: object) -> bytes:
    return json.dumps(what).encode() + b"\n"


def watch(parent: psutil.Process) -> None:
    """Follow the descendants of `parent` until it signs off, or is gone: then say so on stderr, and
    end them."""
    below: set[psutil.Process] = set()
    written = b""
    while parent.is_running():
        below |= _descendants(parent)
        if select([sys.stdin], [], [], POLL_S)[0]:
            # Unbuffered: what a buffer holds, `select` does not see.
            if not (part := os.read(sys.stdin.fileno(), 1 << 16)):
                break
            written += part
            if written.endswith(_line(FAREWELL)):
                return
            if written.endswith(_line(END_THE_REST)):
                break
    told, is_killed = {}, not written.endswith(_line(END_THE_REST))
    if is_killed:
        _say_and_let_go(LAST_WORD)
    for line in written.removesuffix(_line(END_THE_REST)).splitlines(keepends=True):
        # The last one may be cut where the parent was killed.
        if line.endswith(b"\n"):
            told |= json.loads(line)
    below -= {psutil.Process()}
    last = {process for process in below if process.pid == told.get("last")}
    last = last.union(*map(_descendants, last))
    _end(below - last, spared=last)
    if not is_killed:
        return
    if "command" in told:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                told["command"],
                env=told["environment"],
                stdin=subprocess.DEVNULL,
                timeout=REPORT_S,
                check=False,
            )
    _end(last, spared=set())


def _say_and_let_go(sentence: str) -> None:
    """Write to stderr, and leave it: whoever reads it to its end need not wait for what follows."""
    with suppress(OSError):  # nobody reads it any more
        os.write(2, f"{sentence}\n".encode())
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)


def _end(processes: set[psutil.Process], spared: set[psutil.Process]) -> None:
    known = processes | spared | {psutil.Process()}
    while processes:
        # Children are found before their parent is killed, which would hand them to another.
        found = set().union(*map(_descendants, processes)) - known
        for process in processes:
            _kill(process)
        known, processes = known | found, found


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
