"""A checkpoint in memory that another process of this machine reads as a file.

The tensors are in an anonymous file (`memfd`) in the safetensors format, so a reader maps the very
pages they are written to: nothing is copied, nothing is limited by the size of `/dev/shm`, and the
memory is freed with its last process.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping

import torch
from torch import Tensor

from rl_core.models.export.stored_forms import Form, Piece

FORMATS = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of number formats in the safetensors format."""
ALIGNMENT = 8
"""Alignment in bytes; the header is padded with blanks, and wide numbers come first."""


class SharedWeights:
    """Tensors of the given names, shapes, formats and values, in memory that other processes can
    open. Args: forms: the names and shapes in the file of each tensor's pieces; one without is a
    piece of the same name."""

    def __init__(self, tensors: Mapping[str, Tensor], forms: Mapping[str, Form] | None = None):
        ordered = dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))
        header, num_bytes = _header(ordered, forms or {})
        self._file = os.memfd_create("rl-train-weights")
        os.ftruncate(self._file, len(header) + num_bytes)
        memory = mmap.mmap(self._file, len(header) + num_bytes)
        memory[: len(header)] = header
        self.tensors: dict[str, Tensor] = {}
        """Views of the shared memory: readers see what is written to them."""
        start = len(header)
        for name, tensor in ordered.items():
            view = torch.empty(0, dtype=tensor.dtype)
            if tensor.numel():
                view = torch.frombuffer(
                    memory, dtype=tensor.dtype, count=tensor.numel(), offset=start
                )
            self.tensors[name] = view.view(tensor.shape).copy_(tensor)
            start += tensor.nbytes

    @property
    def path(self) -> str:
        """Path of a safetensors file, valid as long as this process lives; other processes of the
        same user may open it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"


def _header(tensors: Mapping[str, Tensor], forms: Mapping[str, Form]) -> tuple[bytes, int]:
    """Return the length and JSON that precede the numbers, and the number of bytes of those."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in tensors.items():
        for piece in forms.get(name) or (Piece(name, tuple(tensor.shape)),):
            stop = start + tensor.element_size() * math.prod(piece.shape)
            entries[piece.name] = {
                "dtype": FORMATS[tensor.dtype],
                "shape": list(piece.shape),
                "data_offsets": [start, stop],
            }
            start = stop
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text, start
