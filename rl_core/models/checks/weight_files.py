"""Early check of a model's weight files by their names and headers: that they are there, whole, and
of the sizes in `config.json`. No tensor is read."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rl_core.errors import ModelError
from rl_core.models.checks.shape import named, read_object

INDEX = "model.safetensors.index.json"
PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth")
MAX_HEADER_BYTES = 2**28
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_EMBEDDING = re.compile(r"(?:(?:model|transformer|language_model)\.)*(?:embed_tokens|wte)\.weight")

Shapes = dict[str, list[int]]
"""The shape of each tensor, by its name."""


def check_weight_files(folder: Path, config: Mapping[str, object], where: str) -> None:
    """Check that a folder's weights can be those of its config.

    Args: config: the content of `config.json`. where: begin of the message.
    Raises: ModelError naming the file or the tensor.
    """
    if not any(file for pattern in PATTERNS for file in folder.glob(pattern)):
        raise ModelError(
            f"{where}: the folder has a config.json but no weights (*.safetensors); copy "
            "them there, or give a folder written by save_pretrained"
        )
    if pickles := _pickles_alone(folder):
        raise ModelError(
            f"{where}: {pickles[0].name} is a pickle, which may run code when it is read; save the "
            "model as safetensors (save_pretrained of transformers 5 does), or set "
            "model.trust_remote_code: true if you trust the folder"
        )
    shapes: Shapes = {}
    for file in _files(folder, where):
        shapes |= _header(file, where)
    # A quantised checkpoint has shapes of its own, which the load undoes.
    if shapes and "quantization_config" not in config:
        _check_shapes(shapes, named(config), where)


def _pickles_alone(folder: Path) -> list[Path]:
    """Return the pickled weight files of a folder that has no safetensors."""
    if any(folder.glob("*.safetensors")):
        return []
    return sorted(file for pattern in PATTERNS for file in folder.glob(pattern))


def _files(folder: Path, where: str) -> Iterator[Path]:
    """Yield the safetensors files that a load would read."""
    index = folder / INDEX
    if not index.is_file():
        whole = folder / "model.safetensors"
        yield from [whole] if whole.is_file() else []
        return
    listed = read_object(index).get("weight_map")
    if not isinstance(listed, dict):
        raise ModelError(f"{where}: {INDEX} has no weight_map; copy it again")
    for name in sorted(set(map(str, listed.values()))):
        if not (folder / name).is_file():
            raise ModelError(f"{where}: {INDEX} names {name}, which is not there; copy it again")
        yield folder / name


def _header(file: Path, where: str) -> Shapes:
    """Return the shapes in a safetensors file: eight bytes with the length of a header, the header
    in JSON, and the tensors.

    Raises: ModelError when the file ends before its last tensor.
    """
    size = file.stat().st_size
    try:
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > min(size, MAX_HEADER_BYTES):
                raise ValueError("no header")
            header: dict[str, Any] = json.loads(opened.read(length))
        tensors = {name: one for name, one in header.items() if name != "__metadata__"}
        end = 8 + length + max((one["data_offsets"][1] for one in tensors.values()), default=0)
        shapes = {name: list(one["shape"]) for name, one in tensors.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{where}: {file.name} is no safetensors file; copy it again") from error
    if size < end:
        raise ModelError(
            f"{where}: {file.name} is cut short ({size} of {end} bytes); copy it again"
        )
    return shapes


def _check_shapes(shapes: Shapes, config: Mapping[str, object], where: str) -> None:
    """Compare the embedding and the number of layers, under the names that most families have."""
    wanted = config.get("vocab_size"), config.get("hidden_size")
    tables = {name: shape for name, shape in shapes.items() if _EMBEDDING.fullmatch(name)}
    for name, shape in tables.items():
        if len(tables) == 1 and None not in wanted and shape != list(wanted):
            raise ModelError(
                f"{where}: the weights are of another model than config.json: {name} is "
                f"{_by(shape)}, vocab_size by hidden_size is {_by(wanted)}"
            )
    layers = {int(match[1]) for name in shapes if (match := _LAYER.search(name))}
    stated = config.get("num_hidden_layers")
    if tables and layers and isinstance(stated, int) and len(layers) < stated:
        raise ModelError(
            f"{where}: the weights are of another model than config.json: they have {len(layers)} "
            f"layers, num_hidden_layers is {stated}"
        )


def _by(shape: Any) -> str:
    return " x ".join(map(str, shape))
