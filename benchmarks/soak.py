"""One small run after another, for hours, in one home: does anything grow? `make bench-soak
HOURS=1`.

Each run starts anew (`fresh: true`), beside a Prefect server that stays. After each: the server's
memory, descriptors and threads, the files of the home, of /tmp and of /dev/shm, and processes left.
The last lines give the growth by the hour, from the second run on.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import psutil

from benchmarks.watched_run import left_in, start
from rl_core.runtime.home import Home
from rl_core.services import catalogue
from rl_core.services.exposure import LOCALHOST
from rl_core.services.ports import free_port


@dataclass(frozen=True)
class State:
    """Sizes and counts after a run."""

    run_s: float
    server_mb: float
    server_descriptors: int
    server_threads: int
    home_mb: float
    home_files: int
    tmp_entries: int
    shm_entries: int
    processes_left: int


def state(server: psutil.Process, home: Path, temporary: Path, run_s: float) -> State:
    """Return what there is now. Args: temporary: the runs' folder for temporary files."""
    files = [file for file in home.rglob("*") if file.is_file()]
    left = [one for one in left_in(home, 20) if one.pid != server.pid]
    return State(
        run_s,
        server.memory_info().rss / 2**20,
        server.num_fds(),
        server.num_threads(),
        sum(file.stat().st_size for file in files) / 2**20,
        len(files),
        sum(1 for _ in temporary.rglob("*")),
        sum(1 for _ in Path("/dev/shm").iterdir()),
        len(left),
    )


def main() -> None:
    """Parse the command line, run for some hours, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("recipe", nargs="*", default=["smoke/text"], help="and overrides")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rl-train-soak-"))
    home, temporary = folder / "home", folder / "tmp"
    temporary.mkdir()
    names = [field.name for field in fields(State)]
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}", flush=True)
    os.environ |= {"RL_TRAIN_HOME": str(home), "PREFECT_HOME": str(home / "prefect")}
    service = catalogue.prefect_server(Home(home), LOCALHOST, free_port(LOCALHOST))
    server = service.start(catalogue.REPOSITORY, folder / "server.log").wait().process
    assert server is not None
    os.environ |= catalogue.access_to_prefect(Home(home), service.url)
    # Short: Ray's sockets lie below it, and their paths may have a hundred characters.
    os.environ["TMPDIR"] = str(temporary)
    began, found = time.monotonic(), list[tuple[float, State]]()
    try:
        while not found or time.monotonic() - began < given.hours * 3600:
            start_s = time.monotonic()
            command = ["run", *given.recipe, "--fresh"]
            code = start(command, home, folder / "runs.log").wait()
            if code != 0:
                raise SystemExit(f"a run ended with {code}: {folder / 'runs.log'}")
            now = state(server, home, temporary, time.monotonic() - start_s)
            found.append((time.monotonic(), now))
            print(f"| {' | '.join(f'{one:.4g}' for one in astuple(now))} |", flush=True)
    finally:
        server.terminate()
    if len(found) > 2:
        (early, first), (late, last) = found[1], found[-1]
        hours = (late - early) / 3600
        for name, before, after in zip(names, astuple(first), astuple(last), strict=True):
            print(f"{name}: {(after - before) / hours:+.3g} an hour")


if __name__ == "__main__":
    main()
