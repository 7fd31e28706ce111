"""Copies of a run's own models on nodes that lack them, sent through Ray's object store.

Only what lies below the home folder is sent: it was made or fetched by this project. A folder of
the user's is asked for instead.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rl_core.distributed.answers import answer_of
from rl_core.distributed.nodes.capacity import name_of
from rl_core.distributed.nodes.preflight import (
    Needs,
    NodeReport,
    check,
    look,
    look_at,
    present_needs,
)
from rl_core.errors import StorageError

PIECE_BYTES = 64 * 2**20
"""Bytes of a file that travel at once."""


def checked_nodes(node_ids: Sequence[str]) -> dict[str, NodeReport]:
    """Look at the nodes of a placement, and bring them what this project made itself.

    Returns: each node's report. Raises: as `look_at` and `check` do.
    """
    needs, here = present_needs(), look(Needs())
    reports = look_at(node_ids, needs)
    if needs.home:
        for sentence in send_missing(reports, Path(needs.home)):
            needs.note(sentence)
        late = [node for node, report in reports.items() if report.missing]
        reports |= look_at(late, needs)
    check(reports, here, needs)
    return reports


def send_missing(reports: Mapping[str, NodeReport], home: Path) -> list[str]:
    """Send every folder below the home that a node lacks. Returns: a sentence for each.

    Raises: StorageError when a node cannot write it.
    """
    said = []
    for node, report in reports.items():
        for folder in report.missing:
            path = Path(folder)
            if path.is_relative_to(home) and path.is_dir():
                _send(path, node)
                said.append(f"{name_of(node)} got a copy of {path}")
    return said


def _send(folder: Path, node: str) -> None:
    import ray
    from ray.exceptions import RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    options = {"num_cpus": 0, "scheduling_strategy": there}
    write = ray.remote(write_piece).options(**options)
    building = str(folder.with_name(f".build-{folder.name}-{uuid.uuid4().hex[:8]}"))
    try:
        for name, content in _pieces(folder):
            answer_of(write.remote(building, name, content))
        answer_of(ray.remote(publish).options(**options).remote(building, str(folder)))
    except RayTaskError as error:
        raise StorageError(
            f"{name_of(node)} cannot write {folder} ({error.cause}); give it a home folder at the "
            "same path"
        ) from error


def _pieces(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a folder in pieces, in order."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        with path.open("rb") as file:
            content = file.read(PIECE_BYTES)
            while True:
                yield path.relative_to(folder).as_posix(), content
                if not (content := file.read(PIECE_BYTES)):
                    break


def write_piece(building: str, name: str, content: bytes) -> None:
    """Add a piece to a file of a folder that is being made, on this node."""
    target = Path(building) / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab") as file:
        file.write(content)


def publish(building: str, folder: str) -> None:
    """Give a finished folder its name, in place of an older one; whoever reads that has it open."""
    older = f"{building}-older"
    if Path(folder).is_dir():
        os.rename(folder, older)
    os.rename(building, folder)
    shutil.rmtree(older, ignore_errors=True)
