"""A command of a home of its own, with every process that works in that home: for the benches that
kill runs and repeat them."""

from __future__ import annotations

import atexit
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
KINDS = {
    "worker": "DeviceWorker",
    "GCS": "gcs_server",
    "raylet": "raylet/raylet",
    "API": "uvicorn",
    "sandbox": "bwrap",
    "fork server": "fork_server/server.py",
    "Ray": "ray::",
}
"""Part of the command line by which a process of each kind is known; the first that fits counts."""


ENDS_S = 60.0
_started: list[subprocess.Popen[bytes]] = []


def own_environment(home: Path) -> dict[str, str]:
    """Return the environment of a command of this home."""
    return os.environ | {"RL_TRAIN_HOME": str(home)}


def start(arguments: list[str], home: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start `rl-train` with these arguments in a home; its output is appended to a file. It ends
    with this process."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.cli", *arguments],
            cwd=REPOSITORY,
            env=own_environment(home),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    if not _started:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        atexit.register(_end_all)
    _started.append(process)
    return process


def _end_all() -> None:
    for process in _started:
        if process.poll() is None:
            process.terminate()
    for process in _started:
        process.wait(ENDS_S)


def tree(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return a process and everything below it; nothing if it has ended."""
    try:
        root = psutil.Process(process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def kind_of(process: psutil.Process, root: int) -> str:
    """Return the kind of a process. Args: root: id of the run's own process."""
    if process.pid == root:
        return "driver"
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return "helper"
    return next((kind for kind, part in KINDS.items() if part in line), "helper")


def left_in(home: Path, within_s: float = 30.0) -> list[psutil.Process]:
    """Return the processes of a home that have not ended within some seconds."""
    end = time.monotonic() + within_s
    while (found := in_home(home)) and time.monotonic() < end:
        time.sleep(0.5)
    return found


def in_home(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            its = process.environ().get("RL_TRAIN_HOME") == str(home)
            if its and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def end_leftovers(home: Path) -> int:
    """End the processes of a home that are still there, and print them. Returns: their number."""
    left = left_in(home)
    for one in left:
        with suppress(psutil.NoSuchProcess):
            print(f"left: {one.pid} {' '.join(one.cmdline())[:150]}", flush=True)
            one.kill()
    return len(left)


def print_table(killed: Counter[str], counts: Counter[str], names: Sequence[str]) -> None:
    """Print the kills by kind of process, and what was counted, in the order of `names`."""
    by_kind = ", ".join(f"{kind} {count}" for kind, count in killed.most_common())
    print(f"\n| what | count |\n|---|---|\n| kills | {killed.total()} ({by_kind}) |")
    for name in names:
        print(f"| {name} | {counts[name]} |")


def digest(home: Path) -> str:
    """Return a digest of the weights that the run of a home exported, of its last replies and of
    its prepared data."""
    found = hashlib.sha256()
    weights = sorted(home.glob("runs/*/model/**/*.safetensors"))
    replies = home.glob("runs/*/samples/evaluate-final.jsonl")
    for file in [*weights, *sorted(replies), *sorted(home.glob("cache/*/*.parquet"))]:
        found.update(file.name.encode())
        found.update(file.read_bytes())
    return found.hexdigest()[:16] if weights else "no weights"


def iterations(home: Path) -> dict[str, int]:
    """Return when each complete iteration of the run was written, by its receipt's name."""
    receipts = home.glob("runs/*/receipts/iteration-*.json")
    return {file.name: file.stat().st_mtime_ns for file in receipts}
