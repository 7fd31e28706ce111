"""Checks of devices, memory and disk, and of writing to and locking the folders in use."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
from filelock import FileLock

from rl_core.doctor.finding import Finding, good, problem, warning
from rl_core.kernels import has_bfloat16_products
from rl_core.runtime.free_memory import CGROUP, container_room
from rl_core.runtime.home import Home
from rl_core.runtime.secrets import redact
from rl_core.tracking.database import database_file, fault_of

AREA = "machine"
GIB = 2**30
LITTLE_MEMORY, TOO_LITTLE_MEMORY = 4 * GIB, 2 * GIB
"""Limits on free memory: SmolLM2-135M with LoRA trains in two GiB; Prefect, MLflow and Ray need one
or two more."""
LITTLE_DISK, TOO_LITTLE_DISK = 10 * GIB, 2 * GIB
FULL_PERCENT = 95
"""Disk usage in percent beyond which Ray stops writing objects."""
BUSY = 1.5
"""Runnable processes per core above which training has to wait for others."""
LITTLE_SHARED_MEMORY = GIB


def examine_machine(home: Home) -> Iterator[Finding]:
    """Check compute, memory and storage. Writes (and removes) small files in the home and the
    temporary folder."""
    yield cores()
    yield products(has_bfloat16_products())
    yield accelerators()
    yield memory(psutil.virtual_memory().available, container_room(CGROUP))
    if (shared := Path("/dev/shm")).is_dir():
        yield shared_memory(shutil.disk_usage(shared).free)
    places = {"home": home.root, "temporary folder": Path(tempfile.gettempdir())}
    for name, folder in places.items():
        yield writing(name, folder)
        yield disk(name, folder)
    yield locking(home.root)
    yield tracking(home)


def cores() -> Finding:
    """Check how many cores this process may use, and how busy they are."""
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
    else:
        usable = os.cpu_count() or 1
    load = os.getloadavg()[0]
    found = f"{usable} usable, load {load:.1f}"
    if load > BUSY * usable:
        return warning(
            AREA, "cores", found, "wait for what else runs (`top`), or expect steps to take longer"
        )
    return good(AREA, "cores", found)


def products(in_bfloat16: bool) -> Finding:
    """Check the speed of bfloat16 matrix products.

    Args: in_bfloat16: True if the CPU has bfloat16 instructions.
    """
    if in_bfloat16:
        return good(AREA, "processor", "multiplies in bfloat16")
    return good(
        AREA,
        "processor",
        "has no products in bfloat16: they are computed in float32, and take longer",
    )


def accelerators() -> Finding:
    """List the accelerators that torch can use."""
    import torch

    if not torch.cuda.is_available():
        return good(AREA, "accelerators", "none; the profile `cpu` is for this machine")
    devices = []
    for index in range(torch.cuda.device_count()):
        devices.append(torch.cuda.get_device_properties(index))
    named = ", ".join(f"{device.name} ({device.total_memory / GIB:.0f} GiB)" for device in devices)
    return good(AREA, "accelerators", f"{len(devices)}: {named}")


def memory(available: int, allowed: int | None) -> Finding:
    """Check the free memory.

    Args: available: bytes that are free on the machine. allowed: bytes left of this process's
    limit.
    """
    room = available if allowed is None else min(available, allowed)
    found = f"{room / GIB:.1f} GiB available" + (
        "" if allowed is None else f" (limit leaves {allowed / GIB:.1f} GiB)"
    )
    if room < TOO_LITTLE_MEMORY:
        return problem(
            AREA, "memory", found, "end what else runs; the smallest language model needs 2 GiB"
        )
    if room < LITTLE_MEMORY:
        return warning(
            AREA, "memory", found, "set placement.micro_batch_size=1, or end what else runs"
        )
    return good(AREA, "memory", found)


def shared_memory(free: int) -> Finding:
    """Check the shared memory.

    Args: free: bytes in /dev/shm, in which Ray passes objects between workers.
    """
    found = f"{free / GIB:.1f} GiB in /dev/shm"
    if free < LITTLE_SHARED_MEMORY:
        return warning(
            AREA, "shared memory", found, "give a container more: docker run --shm-size=4g"
        )
    return good(AREA, "shared memory", found)


def disk(name: str, folder: Path) -> Finding:
    """Check the disk space for checkpoints, exports and Ray's objects."""
    usage = shutil.disk_usage(_nearest(folder))
    percent = 100 * (1 - usage.free / usage.total)
    found = (
        f"{usage.free / GIB:.1f} GiB free of {usage.total / GIB:.0f} at {folder} ({percent:.0f} "
        "% used)"
    )
    fix = (
        f"remove old runs, or set {'RL_TRAIN_HOME' if name == 'home' else 'TMPDIR'} to a larger "
        "disk"
    )
    if usage.free < TOO_LITTLE_DISK:
        return problem(AREA, f"disk of {name}", found, fix)
    if usage.free < LITTLE_DISK or percent > FULL_PERCENT:
        return warning(AREA, f"disk of {name}", found, fix)
    return good(AREA, f"disk of {name}", found)


def writing(name: str, folder: Path) -> Finding:
    """Check that a file can be written to the folder, by writing one."""
    fix = (
        f"set {'RL_TRAIN_HOME' if name == 'home' else 'TMPDIR'} to a folder of your own, or "
        "change its owner"
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".rl-train-doctor-") as file:
            file.write(b"written")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return problem(AREA, f"writing to {name}", f"{folder}: {error.strerror or error}", fix)
    return good(AREA, f"writing to {name}", f"{folder} takes files")


def locking(folder: Path) -> Finding:
    """Check that SQLite and file locks work in the folder; on some network file systems they do
    not."""
    fix = (
        "put RL_TRAIN_HOME on a local disk, or use PostgreSQL and an MLflow server "
        "(docs/operating.md)"
    )
    try:
        with (
            tempfile.TemporaryDirectory(dir=folder, prefix=".rl-train-doctor-") as scratch,
            FileLock(Path(scratch) / "lock", timeout=1),
            closing(_database(scratch)) as first,
            closing(_database(scratch)) as second,
        ):
            first.execute("BEGIN IMMEDIATE")
            locked = _is_refused(second)
    except (OSError, sqlite3.Error) as error:
        return problem(AREA, "locks in home", f"{folder}: {error}", fix)
    if not locked:
        return problem(
            AREA, "locks in home", f"{folder}: two writers were let into one SQLite database", fix
        )
    return good(AREA, "locks in home", "file locks and SQLite work")


def tracking(home: Home) -> Finding:
    """Check that the MLflow database of this home, if it exists, can be used."""
    path = database_file(home.mlflow_uri)
    if path is None:
        return good(AREA, "MLflow database", f"a server's: {redact(home.mlflow_uri)}")
    if not path.is_file():
        return good(AREA, "MLflow database", f"{path} is made by the first run")
    if (fault := fault_of(path)) is not None:
        return problem(AREA, "MLflow database", fault.found, fault.fix)
    return good(AREA, "MLflow database", f"{path} is whole")


def _database(folder: str) -> sqlite3.Connection:
    return sqlite3.connect(Path(folder) / "trial.db", timeout=0, isolation_level=None)


def _is_refused(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return True
    return False


def _nearest(folder: Path) -> Path:
    """Return the folder, or its nearest existing parent."""
    return next(one for one in (folder, *folder.parents) if one.exists())
