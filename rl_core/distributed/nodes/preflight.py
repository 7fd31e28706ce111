"""Look at every node of a placement before anything is spent on it: does it see the run, has it the
same code, the models, the devices?"""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rl_core.distributed.answers import answer_of
from rl_core.distributed.nodes.capacity import name_of
from rl_core.errors import RecipeError, StorageError, Unreachable, UserError
from rl_core.runtime.storage import RemoteFolder, place_of

PATIENCE_S = 120.0
"""Seconds that a node may take to answer: it starts a Python process for it."""
PINNED = ("torch", "transformers", "diffusers", "peft", "tensordict", "numpy", "ray")
"""Packages that must have the same version everywhere, or ranks compute different things."""
NONCE = ".nonce"
SAMPLE_BYTES = 2**16
_ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Needs:
    """Needs of a run, the same on every node."""

    run: str = ""
    """Folder or address that all nodes must see; empty if nothing is written."""
    nonce: str = ""
    """Content of the file `.nonce` there."""
    folders: tuple[tuple[str, str], ...] = ()
    """Local folders, such as models, that every node reads, each with its `sketch`."""
    device_kind: str = "cpu"
    home: str = ""
    """Home folder of the driver, below which models are copied to nodes that lack them."""
    note: Callable[[str], None] = print
    """Is told of copies."""


@dataclass(frozen=True)
class NodeReport:
    """Answer of one node."""

    host: str
    num_cores: int
    code: str
    """Digest of the project's code there."""
    versions: dict[str, str]
    run_fault: str | None = None
    """Reason why the node does not see the run; None if it does."""
    missing: tuple[str, ...] = ()
    """Folders that are not there, or hold something else."""
    device_fault: str | None = None


_needs: ContextVar[Needs | None] = ContextVar("needs_of_nodes", default=None)


@contextmanager
def needing(needs: Needs) -> Iterator[None]:
    """Have the nodes of every placement that is made in the block looked at for these needs."""
    token = _needs.set(needs)
    try:
        yield
    finally:
        _needs.reset(token)


def present_needs() -> Needs:
    """Return the needs of the surrounding `needing` block, or none."""
    return _needs.get() or Needs()


def look(needs: Needs) -> NodeReport:
    """Look at this node."""
    torch_fault = None
    if needs.device_kind == "cuda":
        import torch

        torch_fault = None if torch.version.cuda else f"its torch {torch.__version__} has no CUDA"
    return NodeReport(
        host=socket.gethostname(),
        num_cores=os.cpu_count() or 1,
        code=code_digest(),
        versions=versions(),
        run_fault=_run_fault(needs),
        missing=tuple(folder for folder, held in needs.folders if sketch(Path(folder)) != held),
        device_fault=torch_fault,
    )


def look_at(node_ids: Sequence[str], needs: Needs) -> dict[str, NodeReport]:
    """Ask nodes of the cluster, all at once.

    Returns: each node's report. Raises: Unreachable when a node does not answer; RecipeError when
    it cannot load this project.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ask = ray.remote(look)
    futures = {}
    for node in dict.fromkeys(node_ids):
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": there}
        futures[node] = ask.options(**options).remote(replace(needs, note=print))
    reports: dict[str, NodeReport] = {}
    for node, future in futures.items():
        try:
            reports[node] = answer_of(future, PATIENCE_S)
        except RayTaskError as error:
            said = (str(error.cause).strip() or repr(error.cause)).splitlines()[0]
            if not isinstance(error.cause, ImportError | AttributeError | TypeError):
                raise Unreachable(f"{name_of(node)} cannot be looked at ({said})") from error
            raise RecipeError(
                f"{name_of(node)} cannot load this project ({said}); install the same version "
                "there, in the environment that `ray start` was called from"
            ) from error
        except TimeoutError as error:
            raise Unreachable(f"{name_of(node)} has not answered for {PATIENCE_S:g} s") from error
        except RayError as error:
            said = str(error).strip().splitlines()[0]
            raise Unreachable(f"{name_of(node)} cannot be asked ({said})") from error
    return reports


def check(reports: dict[str, NodeReport], here: NodeReport, needs: Needs) -> None:
    """Compare what the nodes answered with this one.

    Raises: RecipeError or StorageError with a sentence for each kind of fault.
    """
    faults: dict[str, list[str]] = defaultdict(list)
    storage = False
    for node, report in reports.items():
        name = name_of(node).removeprefix("node ")
        if report.code != here.code:
            faults["has other code than this one: bring all to the same version"].append(name)
        for package, held in here.versions.items():
            if (found := report.versions.get(package, "none")) != held:
                faults[f"has {package} {found}, this one {held}: install the same"].append(name)
        if report.run_fault is not None:
            storage = True
            faults[_storage_advice(needs, report.run_fault)].append(name)
        for folder in report.missing:
            faults[f"has no {folder}, or another one: copy it there"].append(name)
        if report.device_fault is not None:
            faults[f"cannot train on a GPU: {report.device_fault}"].append(name)
    if faults:
        said = [f"node(s) {', '.join(names)} {fault}" for fault, names in faults.items()]
        kind: type[UserError] = StorageError if storage and len(faults) == 1 else RecipeError
        raise kind("; ".join(said))


def _storage_advice(needs: Needs, fault: str) -> str:
    if isinstance(place_of(needs.run), RemoteFolder):
        return f"cannot read {needs.run}: {fault}"
    return (
        f"does not see {needs.run} ({fault}): give placement.storage, an s3:// or gs:// address or "
        "a folder that all nodes share"
    )


def _run_fault(needs: Needs) -> str | None:
    if not needs.run:
        return None
    place = place_of(needs.run)
    try:
        if isinstance(place, RemoteFolder):
            found = place.read(NONCE)
        else:
            found = (place / NONCE).read_bytes()
    except FileNotFoundError:
        return "no such folder there" if not Path(needs.run).is_dir() else "another folder there"
    except (OSError, UserError, Unreachable) as error:
        return str(error)
    return None if found == needs.nonce.encode() else "another folder there"


def sketch(folder: Path) -> str:
    """Return a digest of names, sizes and samples of a folder's files, by which two copies of a
    model are told apart without reading them whole; empty if there is no such folder."""
    if not folder.is_dir():
        return ""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.relative_to(folder).as_posix()}\0{size}\0".encode())
        with path.open("rb") as file:
            for start in sorted({0, size // 2, max(0, size - SAMPLE_BYTES)}):
                file.seek(start)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


@cache
def versions() -> dict[str, str]:
    """Return the versions of Python and of the pinned packages in this environment."""
    found = {"Python": platform.python_version()}
    for package in PINNED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found


@cache
def code_digest() -> str:
    """Return a digest of the code of this project that workers run."""
    return digest_of_code(_ROOT)


def digest_of_code(root: Path) -> str:
    """Return a digest of the modules below `rl_core` and `schemas` in a folder."""
    digest = hashlib.sha256()
    for room in ("rl_core", "schemas"):
        for path in sorted((root / room).rglob("*.py")):
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()
