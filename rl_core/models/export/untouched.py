"""Export of everything that training left alone, unchanged: bit by bit, under its name, with the
files next to the weights.

A model is loaded in float32 and saved in one format, and parts that its class does not read are not
saved at all (layers that predict further tokens). This module goes through an export once more:
each tensor that is the base model's own gets the base model's bits, in their format.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
WEIGHTS, ONLY_SHARD = "model.safetensors", "model-00001-of-00001.safetensors"
PROCESSOR_FILES = (
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
    "chat_template.json",
)
"""Files of a processor; some need further libraries to be loaded and saved again."""


def carry_over(source: str, model: PreTrainedModel, out: Path) -> None:
    """Copy everything that training left alone into an export, as it was in the base model.

    Args: source: result of `rl_core.models.locate`. model: the exported one. out: the folder it was
    saved in.
    """
    for name in PROCESSOR_FILES:
        found = _file_of(source, name)
        if found is not None and not (out / name).exists():
            shutil.copyfile(found, out / name)
    _restore_formats(source, out / CONFIG)
    base = _Weights.of(source)
    if base is None:
        return
    exported = _Weights.of(str(out))
    assert exported is not None
    for path, names in exported.by_file().items():
        _restore(path, names, base)
    unread = []
    for pattern in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ():
        unread.append(re.compile(pattern))
    missing = []
    for name in base.files:
        if name not in exported.files and any(one.search(name) for one in unread):
            missing.append(name)
    if missing:
        _add(out, exported, {name: base.tensor(name) for name in missing})


class _Weights:
    """The tensors of a folder or a repository, with their files, which are opened on access."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self.files = dict(files)

    @classmethod
    def of(cls, source: str) -> _Weights | None:
        """Find the tensors of a source; return None if there are no safetensors."""
        from safetensors import safe_open

        index = _file_of(source, INDEX)
        if index is not None:
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            found = {file: _file_of(source, file) for file in set(weight_map.values())}
            return cls(
                {
                    name: path
                    for name, file in weight_map.items()
                    if (path := found[file]) is not None
                }
            )
        whole = _file_of(source, WEIGHTS)
        if whole is None:
            return None
        with safe_open(whole, framework="pt") as file:
            return cls(dict.fromkeys(file.keys(), whole))

    def by_file(self) -> dict[Path, list[str]]:
        """Return the names in each file."""
        grouped: dict[Path, list[str]] = {}
        for name, path in self.files.items():
            grouped.setdefault(path, []).append(name)
        return grouped

    def tensor(self, name: str) -> Tensor:
        """One tensor."""
        from safetensors import safe_open

        with safe_open(self.files[name], framework="pt") as file:
            return file.get_tensor(name)


def _restore_formats(source: str, config: Path) -> None:
    """Restore the base model's names of formats in the config, where loading wrote its own."""
    found = _file_of(source, CONFIG)
    if found is None:
        return
    base, exported = (json.loads(path.read_text(encoding="utf-8")) for path in (found, config))
    for name, part in exported.items():
        if isinstance(part, dict) and part.pop("dtype", None) is not None:
            theirs = base.get(name) or {}
            part |= {
                key: theirs[key] for key in ("dtype", "torch_dtype") if theirs.get(key) is not None
            }
    config.write_text(json.dumps(exported, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _restore(path: Path, names: Iterable[str], base: _Weights) -> None:
    """Restore the base model's own tensors in one file of an export, where the exported ones only
    differ in format."""
    from safetensors.torch import load_file, save_file

    tensors: dict[str, Tensor] = load_file(path)
    changed = False
    for name in names:
        if name not in base.files:
            continue
        theirs, ours = base.tensor(name), tensors[name]
        if (
            theirs.dtype != ours.dtype
            and theirs.shape == ours.shape
            and bool((theirs.to(ours.dtype) == ours).all())
        ):
            tensors[name], changed = theirs, True
    if changed:
        save_file(tensors, path, metadata={"format": "pt"})


def _add(out: Path, exported: _Weights, tensors: dict[str, Tensor]) -> None:
    """Write further tensors to a separate file, and add them to the index."""
    from safetensors.torch import save_file

    unread = "model-unread.safetensors"
    save_file(tensors, out / unread, metadata={"format": "pt"})
    files = {name: path.name for name, path in exported.files.items()}
    if (out / WEIGHTS).exists():
        # Beside an index, a file of this name would be taken for the whole model.
        (out / WEIGHTS).rename(out / ONLY_SHARD)
        files = dict.fromkeys(files, ONLY_SHARD)
    files |= dict.fromkeys(tensors, unread)
    size = sum((out / file).stat().st_size for file in set(files.values()))
    content = {"metadata": {"total_size": size}, "weight_map": files}
    (out / INDEX).write_text(json.dumps(content, indent=2), encoding="utf-8")


def _file_of(source: str, name: str) -> Path | None:
    """Return a file of a folder or of a cached repository of the hub; None if there is none."""
    from transformers.utils.hub import cached_file

    repository, _, revision = source.partition("@")
    found = cached_file(
        repository,
        name,
        revision=revision or None,
        local_files_only=True,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return Path(found) if found else None
