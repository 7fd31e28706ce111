"""Faults of the machine under a run, one after another: `make bench-faults`.

Each fault comes once an iteration is complete: a full disk, a disk that became read-only, EIO on
writes and on reads, a clock that jumps, and SIGSTOP of each process of the run. A table says how
the command ended, what it said last, and whether the same command then ends with the same weights,
bit for bit, as a run that nobody disturbed. Full and read-only disks need root, for a file system
in memory; EIO and the clock need a C compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.watched_run import digest, iterations, kind_of, left_in, start, tree

SHIM = Path(__file__).with_name("fault_shim.c")
DISK_MB = 1200
STOPPED_S = 20.0
LIMIT_S = 900.0
"""A command counts as hung after this."""
CLOCK_JUMPS = {"a day ahead": 86400, "an hour back": -3600}


class Bench:
    """One run undisturbed, then one for each fault."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        self.shim = folder / "shim.so"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(self.shim), str(SHIM), "-ldl"]
        self.has_shim = bool(shutil.which("cc")) and subprocess.run(command).returncode == 0
        home = folder / "undisturbed"
        if start(arguments, home, folder / "undisturbed.log").wait() != 0:
            raise SystemExit(f"the undisturbed run failed: {folder / 'undisturbed.log'}")
        self.expected = digest(home)
        print("| fault | exit code | said last | same command again | same end |")
        print("|---|---|---|---|---|", flush=True)

    def fault(
        self,
        name: str,
        home: Path,
        strike: Callable[[subprocess.Popen[bytes]], subprocess.Popen[bytes] | None],
        heal: Callable[[], object] = lambda: None,
    ) -> None:
        """Run until an iteration is complete, `strike`, wait for the end, `heal`, run again.

        Args: strike: may return another command, which is then the one whose end counts.
        """
        # Its path may not begin as the home's does, below which calls fail.
        log = self.folder / f"log-{name.replace(' ', '-')}.txt"
        process = start(self.arguments, home, log)
        began = time.monotonic()
        while process.poll() is None and not iterations(home):
            time.sleep(0.05)
        process = strike(process) or process
        code, took_s = _end_of(process), time.monotonic() - began
        said = _last_words(log)
        left = len(left_in(home))
        heal()
        again = "-" if code == 0 else str(_end_of(start(self.arguments, home, log)))
        same = "yes" if digest(home) == self.expected else "no"
        stayed = f", {left} processes left" if left else ""
        how = "hung" if code is None else str(code)
        print(f"| {name} | {how}, {took_s:.0f} s{stayed} | {said} | {again} | {same} |", flush=True)


def _end_of(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        for one in tree(process):
            with suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        return None


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "")[:220].replace("|", "\\|")


@contextmanager
def disk(folder: Path) -> Iterator[Path]:
    """Mount a small file system in memory at a folder. Raises: CalledProcessError where that is not
    allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(folder)]
    subprocess.run(mount, check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def full_disk(bench: Bench) -> None:
    """Fill the disk of the home; free it for the second run."""
    with disk(bench.folder / "full") as home:
        filler = home / "filler"

        def fill(_: subprocess.Popen[bytes]) -> None:
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(2**16))

        bench.fault("full disk", home, fill, filler.unlink)


def read_only(bench: Bench) -> None:
    """Run again on a disk that has become read-only; writable for the run after that."""
    with disk(bench.folder / "read-only") as home:

        def remount(how: str) -> None:
            subprocess.run(["mount", "-o", f"remount,{how}", str(home)], check=True)

        def lock(process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
            # A disk with files open for writing stays writable, so the run ends first.
            process.kill()
            process.wait()
            left_in(home)
            remount("ro")
            return start(bench.arguments, home, bench.folder / "log-read-only-disk.txt")

        bench.fault("read-only disk", home, lock, lambda: remount("rw"))


def failing_calls(bench: Bench, calls: str, below: str) -> None:
    """Let calls on files below a folder of the home fail with EIO."""
    name = f"EIO on {calls} of {below or 'the home'}"
    home = bench.folder / name.replace(" ", "-").replace("/", "-")
    home.mkdir()
    when = bench.folder / "when"
    settings = {
        "LD_PRELOAD": str(bench.shim),
        "FAULT_CALLS": calls,
        "FAULT_UNDER": str(home / below),
        "FAULT_WHEN": str(when),
    }
    with _environment(settings):
        bench.fault(name, home, lambda _: when.touch(), when.unlink)


def clock_jump(bench: Bench, name: str, seconds: int) -> None:
    """Set the clock by some seconds."""
    clock = bench.folder / f"clock{seconds}"
    with _environment({"LD_PRELOAD": str(bench.shim), "CLOCK_FILE": str(clock)}):

        def set_clock(_: subprocess.Popen[bytes]) -> None:
            clock.write_text(str(seconds))

        bench.fault(f"clock {name}", bench.folder / f"home{seconds}", set_clock)


def stopped(bench: Bench, kind: str) -> None:
    """SIGSTOP every process of a kind for a while."""

    def stop(process: subprocess.Popen[bytes]) -> None:
        chosen = [one for one in tree(process) if kind_of(one, process.pid) == kind]
        for one in chosen:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGSTOP)
        time.sleep(STOPPED_S)
        for one in chosen:
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGCONT)

    name = f"SIGSTOP of {kind}, {STOPPED_S:.0f} s"
    bench.fault(name, bench.folder / f"stopped-{kind}", stop)


@contextmanager
def _environment(settings: dict[str, str]) -> Iterator[None]:
    os.environ |= settings
    try:
        yield
    finally:
        for name in settings:
            del os.environ[name]


def main() -> None:
    """Parse the command line, and try each fault whose name begins with one of those given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help="beginnings of names of faults")
    parser.add_argument("recipe", nargs="*", default=["smoke/text"], help="and overrides")
    given = parser.parse_args()
    bench = Bench(["run", *given.recipe], Path(tempfile.mkdtemp(prefix="rl-train-faults-")))
    faults: dict[str, Callable[[], None]] = {}
    if os.geteuid() == 0:
        faults |= {"full": lambda: full_disk(bench), "read-only": lambda: read_only(bench)}
    if bench.has_shim:
        faults |= {
            "EIO write runs": lambda: failing_calls(bench, "write", "runs"),
            "EIO write home": lambda: failing_calls(bench, "write", ""),
            "EIO read runs": lambda: failing_calls(bench, "read", "runs"),
            "EIO read cache": lambda: failing_calls(bench, "read", "cache"),
        }
        for name, seconds in CLOCK_JUMPS.items():
            faults[f"clock {name}"] = lambda name=name, s=seconds: clock_jump(bench, name, s)
    for kind in ("driver", "worker", "fork server", "API", "GCS", "raylet"):
        faults[f"stop {kind}"] = lambda kind=kind: stopped(bench, kind)
    for name, try_it in faults.items():
        if name.startswith(tuple(given.only)):
            try_it()
    print(f"logs: {bench.folder}")


if __name__ == "__main__":
    main()
