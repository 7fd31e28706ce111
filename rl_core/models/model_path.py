"""Checks of a recipe's model path that make and load nothing."""

from pathlib import Path

from rl_core.builtin import embedded
from rl_core.errors import ModelError
from rl_core.models.adapters.exported import ADAPTER_CONFIG, AdapterFolder, adapter_folder
from rl_core.runtime.user_paths import user_path

PIPELINE_INDEX = "model_index.json"
"""File that identifies a folder as a diffusers pipeline, whose parts have separate folders."""


def check_path(path: str, models_dir: Path, key: str = "model.path") -> str:
    """Check a path without making anything, and return the folder or hub id of its config and
    tokenizer: for a folder of adapters alone, its base.

    Args: key: key of the recipe, for the message. Raises: ModelError when a local folder is not a
    model.
    """
    if path.startswith(embedded.PREFIX):
        return str(embedded.embedded_folder(path.removeprefix(embedded.PREFIX), models_dir))
    folder = user_path(path)
    if folder.is_dir():
        if (adapters := adapter_folder(path, key)) is not None:
            return _base_of(adapters, key)
        if not is_model(folder):
            raise ModelError(
                f"{key} {path}: the folder has neither config.json nor {PIPELINE_INDEX}; give a "
                "folder written by save_pretrained"
            )
        return str(folder)
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        raise ModelError(f"{key} {path}: no such folder")
    return path


def _base_of(adapters: AdapterFolder, key: str) -> str:
    """Return the base of adapters in the form of `check_path`. Raises: ModelError when it is not
    here."""
    where = f"{key} {adapters.folder}"
    base = user_path(adapters.base)
    if base.is_dir():
        if not is_model(base):
            raise ModelError(f"{where}: the base model of these adapters, {base}, is no model")
        return adapters.base
    if base.is_absolute() or adapters.base.startswith(".") or adapters.base.count("/") > 1:
        raise ModelError(
            f"{where}: the base model of these adapters, {adapters.base}, is not on this machine; "
            f"name its folder or hub id in {ADAPTER_CONFIG} (base_model_name_or_path)"
        )
    return adapters.base


def is_model(folder: Path) -> bool:
    """Return True if a folder is a whole model; one of adapters alone is none."""
    return any((folder / name).is_file() for name in ("config.json", PIPELINE_INDEX))
