"""Export of a registered version as a folder: its weights, verified, and its lineage."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

from rl_core.data.store.atomic import atomic_write_text, storage_error, sync_tree
from rl_core.data.store.weights import weights_digest
from rl_core.errors import StorageError
from rl_core.runtime.user_paths import user_path
from rl_core.tracking.lineage import Lineage, RunLineage
from rl_core.tracking.model_card import ensure_card

LINEAGE = "lineage.json"


def export_version(lineage: Lineage, folder: Path) -> Path:
    """Copy a version's weights into a new folder, completely or not at all, and write
    `lineage.json` next to them.

    Returns: the folder, in the format that `model.path`, transformers or diffusers load. Raises:
    StorageError when the folder is not empty, the weights are gone, or they are not those that were
    registered.
    """
    target, source = user_path(folder).absolute(), Path(lineage.model_dir)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StorageError(f"{folder} is not an empty folder; name a new one")
    if not source.is_dir():
        raise StorageError(
            f"{lineage.name} v{lineage.version}: its weights at {source} are gone; rl-train "
            "reproduce"
        )
    building = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        shutil.copytree(source, building)
        _check(lineage, building)
        ensure_card(building, lineage)
        write_lineage(lineage, building)
        sync_tree(building)
        building.replace(target)
    except OSError as error:
        raise storage_error(target, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def write_lineage(lineage: RunLineage, folder: Path) -> None:
    """Write `lineage.json` into a folder of weights."""
    atomic_write_text(folder / LINEAGE, json.dumps(lineage.to_dict(), indent=2) + "\n")


def _check(lineage: Lineage, folder: Path) -> None:
    """Compare the copy with the registered weights.

    Raises: StorageError when they differ.
    """
    found = weights_digest(folder)
    if lineage.weights_digest and found != lineage.weights_digest:
        raise StorageError(
            f"{lineage.name} v{lineage.version}: the weights at {lineage.model_dir} were changed "
            f"(digest {found}, registered {lineage.weights_digest}); rl-train reproduce gives "
            "the registered ones"
        )
