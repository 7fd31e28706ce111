"""Temporary release of the memory of tensors: each stays the same object with an emptied storage.

From an accelerator the bytes go to main memory. On the CPU, where that would free nothing, they go
to a file without a name, which the system removes when the process ends for any reason.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Iterable
from typing import IO, Any

import torch
from torch import Tensor

from rl_core.errors import StorageError
from rl_core.runtime.home import Home


class Parked:
    """Bytes of tensors whose storage is empty. Until `restore` nothing may compute with those
    tensors."""

    def __init__(self, tensors: Iterable[Tensor], device: torch.device) -> None:
        """Empty the tensors' storages on `device`. Raises: StorageError when a write fails; then
        nothing is released."""
        self.device = device
        # Several tensors may look at one storage, which only its address in C tells.
        storages = {}
        for tensor in tensors:
            storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        self._storages = [
            storage
            for storage in storages.values()
            if storage.device == device and _can_be_emptied(storage)
        ]
        self._sizes = [storage.nbytes() for storage in self._storages]
        self._file: IO[bytes] | None = None
        self._copies: list[Tensor] = []
        if device.type == "cpu":
            self._file = self._spilled()
        else:
            self._copies = [_bytes_of(storage).cpu() for storage in self._storages]
        for storage in self._storages:
            storage.resize_(0)
        _return_to_system(device)

    @property
    def num_bytes(self) -> int:
        """Number of released bytes."""
        return sum(self._sizes)

    def restore(self) -> None:
        """Fill the storages again, bit for bit."""
        if self._file is not None:
            self._file.seek(0)
        for index, (storage, size) in enumerate(zip(self._storages, self._sizes, strict=True)):
            storage.resize_(size)
            if self._file is not None:
                self._file.readinto(_memory_of(storage))  # type: ignore[attr-defined]
            else:
                _bytes_of(storage).copy_(self._copies[index])
        self._copies = []
        if self._file is not None:
            self._file.close()

    def _spilled(self) -> IO[bytes]:
        root = Home.default().root
        try:
            root.mkdir(parents=True, exist_ok=True)
            # It lives as long as the tensors are parked.
            file = tempfile.TemporaryFile(dir=root)  # noqa: SIM115
            for storage in self._storages:
                file.write(_memory_of(storage))
            file.flush()
            return file
        except OSError as error:
            raise StorageError(
                f"offload: {self.num_bytes} bytes could not be written below {root} ({error}); "
                "free some space or set RL_TRAIN_HOME to a larger disk"
            ) from error


def _can_be_emptied(storage: Any) -> bool:
    """Return False for a storage that maps a file (weights as loaded): it is not resizable, and the
    system can drop its pages."""
    return storage.nbytes() > 0 and storage.resizable()


def _bytes_of(storage: Any) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _memory_of(storage: Any) -> Any:
    """Return the memory of a storage on the CPU. (A view by numpy would fix its size for good.)"""
    return (ctypes.c_char * storage.nbytes()).from_address(storage.data_ptr())


def _return_to_system(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif sys.platform == "linux":
        # glibc keeps freed blocks for itself unless told otherwise; other C libraries have no such
        # call.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
