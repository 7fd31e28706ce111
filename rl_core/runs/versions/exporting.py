"""Export of a version or an iteration in a chosen format, completely or not at all."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import replace
from pathlib import Path

from rl_core.data.store.atomic import disk_errors, storage_error, sync_tree
from rl_core.errors import ModelError, StorageError
from rl_core.models.export.formats import ModelFormat, Numbers
from rl_core.models.export.gguf_file import MODEL_FILE, write_gguf
from rl_core.models.model_path import is_model
from rl_core.runs.versions.iterations import export_iteration, find_iteration
from rl_core.runtime.home import Home
from rl_core.runtime.user_paths import user_path
from rl_core.tracking.lineage import trace
from rl_core.tracking.model_card import README
from rl_core.tracking.model_folder import LINEAGE, export_version
from rl_core.tracking.model_versions import find_version
from rl_core.tracking.stored_weights import weights_here
from schemas.sections.policy import ExportKind


def export_as(
    model: str,
    version: int | None,
    home: Home,
    to: Path,
    format: ModelFormat | None,
    numbers: Numbers = Numbers.F16,
) -> Path:
    """Write a model into a new folder, with its card.

    Args: model, version: as `find_version` takes them, or `RUN@12`. format: None for that of the
    registered folder or the recipe. numbers: number format of a GGUF file.
    Returns: the folder. Raises: StorageError when it is there; ModelError when the model cannot
    have the format.
    """
    target = user_path(to).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise StorageError(f"{to} is not an empty folder; name a new one")
    if format is not ModelFormat.GGUF:
        return _write(model, version, home, target, format)
    building = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    try:
        with disk_errors(target):
            whole = _write(model, version, home, building / "hf" / target.name, ModelFormat.HF)
            made = building / "gguf"
            made.mkdir()
            write_gguf(whole, made / MODEL_FILE, numbers)
            for name in (README, LINEAGE):
                if (whole / name).is_file():
                    shutil.copyfile(whole / name, made / name)
            sync_tree(made)
            made.replace(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return target


def _write(
    model: str, version: int | None, home: Home, target: Path, format: ModelFormat | None
) -> Path:
    kept = find_iteration(model, home) if version is None else None
    if kept is not None:
        if target.exists():
            raise StorageError(f"{target} exists; name a new folder")
        _make_parent(target)
        kinds = {ModelFormat.HF: ExportKind.MERGED, ModelFormat.ADAPTER: ExportKind.ADAPTER}
        kind = None if format is None else kinds[format]
        return export_iteration(kept, home, target, kind=kind)
    lineage = trace(home.mlflow_uri, model, version, ui=home.mlflow_ui)
    here = weights_here(find_version(home.mlflow_uri, model, version), home.mlflow_uri, home.models)
    lineage = replace(lineage, model_dir=here)
    source = Path(here)
    found = ModelFormat.HF if is_model(source) else ModelFormat.ADAPTER
    if format not in (None, found) and source.is_dir():
        run = Path(lineage.checkpoint).parent.parent.name
        raise ModelError(
            f"{lineage.name} v{lineage.version} was registered as {found}, not {format}; "
            f"rl-train export {run}@ITERATION --format {format} writes an iteration whose "
            "checkpoint was kept"
        )
    _make_parent(target)
    return export_version(lineage, target)


def _make_parent(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(target, error) from error
