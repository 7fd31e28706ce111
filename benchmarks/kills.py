"""kill -9 of random processes of a run at random moments, and the same command again until it ends
well: `make bench-kills KILLS=100`.

Every end is compared, bit for bit, with that of a run that nobody disturbed. What counts: kills by
kind of process, ends that differ, complete iterations that were done again, commands that hang, and
processes, temporary folders and shared memory that stay.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil

from benchmarks.watched_run import (
    digest,
    end_leftovers,
    iterations,
    kind_of,
    print_table,
    start,
    tree,
)

HUNG_FACTOR = 8.0
"""A command counts as hung after this many times the length of the undisturbed run."""
MIN_HUNG_S = 900.0
KILLS_PER_HOME = 6
"""Kills before a home's run may end in peace."""
COUNTED = (
    "homes",
    "ends that differ",
    "homes that never ended well",
    "commands that hung",
    "iterations done again",
    "processes left",
)
PREPARING_S = 1.5
"""Seconds from the first sign of prepared data within which `--preparing` kills."""


class Siege:
    """The kills and what came of them."""

    def __init__(
        self, arguments: list[str], folder: Path, seed: int, *, preparing: bool = False
    ) -> None:
        """Make none yet. Args: preparing: kill while data is prepared, not at any moment."""
        self.arguments, self.folder, self.preparing = arguments, folder, preparing
        self.rng, self.counts, self.killed = random.Random(seed), Counter[str](), Counter[str]()

    def undisturbed(self) -> None:
        """Run once without a kill, for its end and its length."""
        home, began = self.folder / "undisturbed", time.monotonic()
        code = start(self.arguments, home, self.folder / "undisturbed.log").wait()
        if code != 0:
            raise SystemExit(f"the undisturbed run ended with {code}: {self.folder}")
        self.length_s, self.expected = time.monotonic() - began, digest(home)
        print(f"undisturbed: {self.length_s:.0f} s, {self.expected}", flush=True)

    def attack(self, number: int, num_kills: int) -> int:
        """Kill processes of one home's run and let it end. Returns: the number of kills."""
        home, log = self.folder / f"home-{number}", self.folder / f"home-{number}.log"
        kills, done, code = 0, dict[str, int](), 1
        for _ in range(num_kills + 3):
            process, began = start(self.arguments, home, log), time.monotonic()
            while kills < num_kills and self._kill_one(process, home):
                kills += 1
            code = self._end_of(process)
            if code == 0:
                # The command that goes on is shorter; a moment after its end kills nobody.
                self.length_s = min(self.length_s, time.monotonic() - began)
            self.counts["processes left"] += end_leftovers(home)
            now = iterations(home)
            self.counts["iterations done again"] += sum(
                now.get(name) != written for name, written in done.items()
            )
            done = now
            if code == 0:
                break
        found = digest(home)
        self.counts["homes"] += 1
        self.counts["ends that differ"] += code == 0 and found != self.expected
        self.counts["homes that never ended well"] += code != 0
        print(f"home {number}: {kills} kills, rc {code}, {found}", flush=True)
        if code == 0 and found == self.expected:
            shutil.rmtree(home, ignore_errors=True)
        return kills

    def _moment(self, process: subprocess.Popen[bytes], home: Path) -> float:
        """Return the seconds to wait before a kill."""
        if not self.preparing:
            return self.rng.uniform(0.02, 0.6) * self.length_s
        while process.poll() is None and not (home / "cache").exists():
            time.sleep(0.01)
        return self.rng.uniform(0.0, PREPARING_S)

    def _kill_one(self, process: subprocess.Popen[bytes], home: Path) -> int:
        """Returns: 1, or 0 if the command ended before its moment."""
        try:
            process.wait(self._moment(process, home))
            return 0
        except subprocess.TimeoutExpired:
            by_kind: dict[str, list[psutil.Process]] = {}
            for one in tree(process):
                by_kind.setdefault(kind_of(one, process.pid), []).append(one)
        if not by_kind:
            return 0
        kind = self.rng.choice(sorted(by_kind))
        try:
            self.rng.choice(by_kind[kind]).kill()
        except psutil.NoSuchProcess:
            return 0
        self.killed[kind] += 1
        return 1

    def _end_of(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(max(MIN_HUNG_S, HUNG_FACTOR * self.length_s))
        except subprocess.TimeoutExpired:
            self.counts["commands that hung"] += 1
            for one in tree(process):
                one.kill()
            return process.wait()


def main() -> None:
    """Parse the command line, kill, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--preparing", action="store_true", help="kill while data is prepared, once in a home"
    )
    parser.add_argument("recipe", nargs="*", default=["smoke/text"], help="and overrides")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rl-train-kills-"))
    shared = {file.name for file in Path("/dev/shm").iterdir()}
    siege = Siege(["run", *given.recipe], folder, given.seed, preparing=given.preparing)
    kills_per_home = 1 if given.preparing else KILLS_PER_HOME
    siege.undisturbed()
    kills = number = 0
    while kills < given.kills:
        kills += siege.attack(number, min(kills_per_home, given.kills - kills))
        number += 1
    print_table(siege.killed, siege.counts, COUNTED)
    builds = [*folder.glob("home-*/**/.build-*")]
    memory = {file.name for file in Path("/dev/shm").iterdir()} - shared
    print(f"| `.build-*` left | {len(builds)} |\n| new entries of /dev/shm | {len(memory)} |")
    print(f"logs: {folder}")


if __name__ == "__main__":
    main()
