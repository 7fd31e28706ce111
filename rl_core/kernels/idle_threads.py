"""OpenMP threads that sleep while they wait for each other, as long as other processes need the
cores.

Decoding is a chain of small operations, each spread over OpenMP's threads, which spin at the end of
each operation until the last one has come. Alone that is quickest: threads that sleep cost a step
of the recipe `text` a third more. Where another process has one of the cores, they spin for a
thread that does not run, and the step takes three to four times as long; asleep, they leave the
core to that thread. `make bench-neighbours` has the figures.

So a worker looks at the machine a few times a second. libgomp reads its spin count only once, but
gives up spinning after a hundred rounds while a process has more OpenMP threads than there are
cores (GOMP_SPINCOUNT in its manual). An idle team of threads makes that so, and its end undoes it.
Which thread computes what stays the same, and so does every bit.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path

CHOICES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Environment variables by which users choose how OpenMP's threads wait; then nothing is done."""
PERIOD_S = 0.25
"""Seconds between two looks at the machine."""
SPARE_CORES = 0.25
"""Cores that other processes may use on top of the free ones before this one's threads sleep: Ray's
daemons always use a little."""
STAT = Path("/proc/stat")
NUM_STATES = 8
"""States of a core in a line of /proc/stat, from `user` to `steal`; guests' time, behind them, is
part of `user`."""
IDLE_STATES = (3, 4)


def spare_busy_cores(num_threads: int) -> Neighbours | None:
    """Watch the machine from now on, and let the OpenMP threads of this process sleep while they
    wait whenever other processes need the cores.

    Returns: None where there is nothing to do: a single thread, a wait policy that the user chose,
    or another OpenMP than libgomp on Linux.
    """
    library = _libgomp()
    if num_threads < 2 or library is None or any(name in os.environ for name in CHOICES):
        return None
    neighbours = Neighbours(num_threads, library)
    neighbours.start()
    return neighbours


class Neighbours(threading.Thread):
    """Compares the cores that other processes use with those that this one's threads leave free."""

    def __init__(self, num_threads: int, library: ctypes.CDLL) -> None:
        super().__init__(name="neighbours", daemon=True)
        self.cores = os.sched_getaffinity(0)
        self.num_threads = num_threads
        self._library = library
        self._ended = threading.Event()
        self.team: IdleTeam | None = None
        """The team that makes threads sleep; None while they spin."""

    def run(self) -> None:
        """Look at the machine until `stop`."""
        before, own_before, since = busy_seconds(self.cores), time.process_time(), time.monotonic()
        while not self._ended.wait(PERIOD_S):
            after, own_after, now = busy_seconds(self.cores), time.process_time(), time.monotonic()
            others = (after - before - own_after + own_before) / (now - since)
            self._follow(is_crowded(others, self.num_threads, len(self.cores)))
            before, own_before, since = after, own_after, now
        self._follow(False)

    def stop(self) -> None:
        """End the thread, and let the others spin again."""
        self._ended.set()
        self.join()

    def _follow(self, crowded: bool) -> None:
        if crowded and self.team is None:
            self.team = IdleTeam(self._library, len(self.cores) + 1)
        elif not crowded and self.team is not None:
            self.team.end()
            self.team = None


class IdleTeam:
    """OpenMP threads without work; while they live, libgomp takes the machine for overcommitted."""

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        self._library, self._num_threads = library, num_threads
        self._ended = threading.Event()
        # libgomp keeps a team for the thread that asked for it, and ends it with that thread.
        self._leader = threading.Thread(target=self._lead, name="idle-team", daemon=True)
        self._leader.start()

    def end(self) -> None:
        """End the team."""
        self._ended.set()
        self._leader.join()

    def _lead(self) -> None:
        work = ctypes.cast(self._library.omp_get_num_threads, ctypes.c_void_p)
        self._library.GOMP_parallel(work, None, ctypes.c_uint(self._num_threads), ctypes.c_uint(0))
        self._ended.wait()


def is_crowded(others: float, num_threads: int, num_cores: int) -> bool:
    """Return True if other processes use so many cores that some of this one's threads have to
    wait for one."""
    return others + num_threads > num_cores + SPARE_CORES


def busy_seconds(cores: set[int], stat: Path = STAT) -> float:
    """Return the seconds that these cores have worked since the machine started."""
    ticks = 0
    for line in stat.read_text().splitlines():
        name, *states = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            spent = [int(state) for state in states[:NUM_STATES]]
            ticks += sum(spent) - sum(spent[index] for index in IDLE_STATES)
    return ticks / os.sysconf("SC_CLK_TCK")


def _libgomp() -> ctypes.CDLL | None:
    """Return the libgomp that torch has loaded."""
    maps = Path("/proc/self/maps")
    if not maps.exists() or not STAT.exists():
        return None
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if "libgomp" in line}
    # Other packages bring a copy of their own; torch's products run on torch's.
    own = sorted(paths, key=lambda path: ("/torch/" not in path, path))
    return ctypes.CDLL(own[0]) if own else None
