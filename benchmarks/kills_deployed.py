"""kill -9 of random processes of a deployment and of its services under `rl-train up`, and
`rl-train up` and the deployment again until a run of it completes: `make bench-kills-deployed`.

Every end is compared, bit for bit, with that of a deployment that nobody disturbed. What counts,
beside what `benchmarks.kills` counts: flow runs that reach no end, which Prefect's UI would show as
running for ever.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.watched_run import (
    REPOSITORY,
    digest,
    end_leftovers,
    in_home,
    iterations,
    kind_of,
    own_environment,
    print_table,
)
from rl_core.runtime.home import DEPLOYED, Home
from rl_core.runtime.home_keys import prefect_password
from rl_core.services.catalogue import credentials

ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
POLL_S = 0.5
COMMAND_S = 300.0
"""After this a command of the services counts as hung."""
HUNG_FACTOR, MIN_HUNG_S = 8.0, 300.0
"""A flow run counts as hung after this many times the length of the undisturbed one."""
KILLS_PER_HOME = 4
RUNS_PER_HOME = KILLS_PER_HOME + 3
"""Runs of the deployment until a home counts as lost."""
COUNTED = (
    "homes",
    "ends that differ",
    "homes that never ended well",
    "flow runs without an end",
    "iterations done again",
    "processes left",
)
SERVICES = ("prefect", "mlflow", "worker-rl-train", "worker-rl-light")


class Deployed:
    """The services of one home and the runs of one deployment."""

    def __init__(self, home: Path, recipe: str) -> None:
        """Start nothing yet."""
        self.home, self.recipe = home, recipe

    def command(self, name: str) -> None:
        """Run `rl-train up` or `down`. Raises: SystemExit with what it said, if it fails."""
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli", name],
            cwd=REPOSITORY,
            env=own_environment(self.home),
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"rl-train {name}: {done.returncode}\n{done.stdout}{done.stderr}")

    def begin(self) -> str:
        """Create a run of the deployment. Returns: the flow run's id."""
        identity = self._ask("GET", "deployments/name/rl-train/text")["id"]
        body = {"parameters": {"recipe": self.recipe}, "state": {"type": "SCHEDULED"}}
        return self._ask("POST", f"deployments/{identity}/create_flow_run", body)["id"]

    def state(self, run: str) -> str:
        """Return the type of a flow run's state; nothing while no server answers."""
        try:
            return self._ask("GET", f"flow_runs/{run}")["state"]["type"]
        except httpx.HTTPError:
            return ""

    def end(self, run: str, within_s: float) -> str:
        """Wait for the end of a flow run. Returns: its state, the last one if it has not ended."""
        until = time.monotonic() + within_s
        while (state := self.state(run)) not in ENDED and time.monotonic() < until:
            time.sleep(POLL_S)
        return state

    def by_kind(self) -> dict[str, list[psutil.Process]]:
        """Return the processes of the home by kind; the services are kinds of their own."""
        services = {entry["pid"]: name for name, entry in self._records().items()}
        found: dict[str, list[psutil.Process]] = {}
        for one in in_home(self.home):
            found.setdefault(services.get(one.pid) or kind_of(one, root=0), []).append(one)
        return found

    def _records(self) -> dict[str, Any]:
        records = Home(self.home).service_records()
        records.pop(DEPLOYED, None)
        return records

    def _ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> Any:
        url = f"{self._records()['prefect']['url']}/api/{path}"
        headers = credentials(prefect_password(self.home))
        answer = httpx.request(method, url, json=body, headers=headers, timeout=60)
        answer.raise_for_status()
        return answer.json()


class Siege:
    """The kills and what came of them."""

    def __init__(self, recipe: str, folder: Path, seed: int) -> None:
        """Make none yet."""
        self.recipe, self.folder = recipe, folder
        self.rng, self.counts, self.killed = random.Random(seed), Counter[str](), Counter[str]()

    def undisturbed(self) -> None:
        """Run the deployment once without a kill, for its end and its length."""
        with self._home("undisturbed") as deployed:
            deployed.command("up")
            began = time.monotonic()
            state = deployed.end(deployed.begin(), 3600)
            self.length_s, self.expected = time.monotonic() - began, digest(deployed.home)
        if state != "COMPLETED":
            raise SystemExit(f"the undisturbed run ended as {state}: {self.folder}")
        print(f"undisturbed: {self.length_s:.0f} s, {self.expected}", flush=True)

    def attack(self, number: int, num_kills: int) -> int:
        """Kill processes of one home and let its deployment end. Returns: the number of kills."""
        kills, done, state = 0, dict[str, int](), ""
        with self._home(f"home-{number}") as deployed:
            for _ in range(RUNS_PER_HOME):
                deployed.command("up")
                run = deployed.begin()
                while kills < num_kills and self._kill_one(deployed, run):
                    kills += 1
                    deployed.command("up")
                state = deployed.end(run, max(MIN_HUNG_S, HUNG_FACTOR * self.length_s))
                self.counts["flow runs without an end"] += state not in ENDED
                now = iterations(deployed.home)
                self.counts["iterations done again"] += sum(
                    now.get(name) != written for name, written in done.items()
                )
                done = now
                if state == "COMPLETED":
                    break
            found = digest(deployed.home)
        self.counts["homes"] += 1
        self.counts["ends that differ"] += state == "COMPLETED" and found != self.expected
        self.counts["homes that never ended well"] += state != "COMPLETED"
        print(f"home {number}: {kills} kills, {state}, {found}", flush=True)
        if state == "COMPLETED" and found == self.expected:
            shutil.rmtree(deployed.home, ignore_errors=True)
        return kills

    def _kill_one(self, deployed: Deployed, run: str) -> int:
        """Returns: 1, or 0 if the run ended before its moment."""
        if deployed.end(run, self.rng.uniform(0.02, 0.6) * self.length_s) in ENDED:
            return 0
        by_kind = deployed.by_kind()
        # Half of the kills are of the services, which are few beside what a run starts.
        services = sorted(set(by_kind).intersection(SERVICES))
        others = sorted(set(by_kind).difference(SERVICES))
        kind = self.rng.choice(services if not others or self.rng.random() < 0.5 else others)
        try:
            self.rng.choice(by_kind[kind]).kill()
        except psutil.NoSuchProcess:
            return 0
        self.killed[kind] += 1
        print(f"  killed: {kind}", flush=True)
        return 1

    @contextmanager
    def _home(self, name: str) -> Iterator[Deployed]:
        """A home of its own, whose services stop with the block."""
        deployed = Deployed(self.folder / name, self.recipe)
        try:
            yield deployed
        finally:
            deployed.command("down")
            self.counts["processes left"] += end_leftovers(deployed.home)


def main() -> None:
    """Parse the command line, kill, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("recipe", nargs="?", default="smoke/text")
    given = parser.parse_args()
    # The services of the present home end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    folder = Path(tempfile.mkdtemp(prefix="rl-train-kills-"))
    siege = Siege(given.recipe, folder, given.seed)
    siege.undisturbed()
    kills = number = 0
    while kills < given.kills:
        kills += siege.attack(number, min(KILLS_PER_HOME, given.kills - kills))
        number += 1
    print_table(siege.killed, siege.counts, COUNTED)
    print(f"logs: {folder}")


if __name__ == "__main__":
    main()
