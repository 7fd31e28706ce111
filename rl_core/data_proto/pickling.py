"""Pickling of a batch: its tensors are protocol 5 buffers, which may travel out of band, without a
copy.

Ray and any other caller that passes `buffer_callback` get the tensors' own memory. A plain
`pickle.dumps(proto, protocol=5)` copies each tensor once into the stream; protocols 3 and 4 copy it
twice. Protocol 2 (that of `torch.save`) leaves the tensors to torch.

Tensors in object columns and in metadata are packed the same way, and shared tensors stay shared:
siblings that hold one image still hold one image. Only data is pickled, not the autograd graph. A
tensor from an accelerator is restored on the same device if it exists, else on the CPU. Tensors
without flat memory (sparse, quantised, subclasses) are left to torch.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from operator import index
from typing import SupportsIndex, TypeVar, cast

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.data_proto import jagged


class PackedTensor:
    """Packed form of a dense tensor in a pickle; unpickling gives the tensor."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __reduce_ex__(
        self, protocol: SupportsIndex
    ) -> tuple[Callable[..., Tensor], tuple[object, ...]]:
        level = index(protocol)
        if level < 3:
            return _itself, (self.tensor,)
        dtype, shape, data = flat_bytes(self.tensor)
        buffer = pickle.PickleBuffer(data.data) if level >= 5 else data.tobytes()
        return tensor_from_bytes, (dtype, shape, buffer, str(self.tensor.device))


class PackedJagged:
    """Packed form of a jagged tensor in a pickle; its offsets are packed once for all columns that
    share them."""

    __slots__ = ("offsets", "values")

    def __init__(self, values: PackedTensor | Tensor, offsets: PackedTensor | Tensor) -> None:
        self.values, self.offsets = values, offsets

    def __reduce_ex__(
        self, protocol: SupportsIndex
    ) -> tuple[Callable[..., Tensor], tuple[object, ...]]:
        return jagged.join, (self.values, self.offsets)


class PackedTensorDict:
    """Packed form of a TensorDict in a pickle."""

    __slots__ = ("batch_size", "device", "values")

    def __init__(
        self, values: dict[str, object], batch_size: tuple[int, ...], device: str | None
    ) -> None:
        self.values, self.batch_size, self.device = values, batch_size, device

    def __reduce_ex__(
        self, protocol: SupportsIndex
    ) -> tuple[Callable[..., TensorDict], tuple[object, ...]]:
        return _tensordict, (self.values, self.batch_size, self.device)


Packed = PackedTensor | PackedJagged | PackedTensorDict
"""Stand-in for tensors in a pickle."""
Bytes = bytes | bytearray | memoryview | np.ndarray
"""A buffer."""
V = TypeVar("V")

PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
"""Frequent types that never contain a tensor."""


class Packer:
    """Replaces the tensors inside a value by their packed forms; containers without tensors stay
    themselves."""

    def __init__(self) -> None:
        self._done: dict[int, object] = {}
        # Identities in `_done` mean something only while their owners live.
        self._alive: list[object] = []

    def pack(self, value: V) -> V | Packed:
        """Return the value with its tensors packed, at any depth of dicts, lists, tuples and object
        arrays."""
        if _holds_nothing(value):
            return value
        if id(value) not in self._done:
            # A container that holds itself is met again before it is done, and then goes as it is.
            self._done[id(value)] = value
            self._alive.append(value)
            self._done[id(value)] = self._packed(value)
        return cast("V | Packed", self._done[id(value)])

    def _packed(self, value: object) -> object:
        if type(value) is dict:
            items = {key: self.pack(one) for key, one in value.items()}
            if any(items[key] is not one for key, one in value.items()):
                return items
            return value
        if type(value) is list or type(value) is tuple:
            packed = [self.pack(one) for one in value]
            changed = any(new is not old for new, old in zip(packed, value, strict=True))
            return type(value)(packed) if changed else value
        if isinstance(value, np.ndarray):
            return self._packed_array(value)
        if isinstance(value, Tensor):
            return self._packed_tensor(value)
        assert isinstance(value, TensorDictBase), type(value)
        device = None if value.device is None else str(value.device)
        return PackedTensorDict(
            {str(key): self.pack(one) for key, one in value.items()},
            tuple(value.batch_size),
            device,
        )

    def _packed_tensor(self, tensor: Tensor) -> PackedTensor | PackedJagged | Tensor:
        if tensor.is_nested:
            values, offsets = jagged.parts(tensor.detach())
            packed = self.pack(values), self.pack(offsets)
            return PackedJagged(
                *cast("tuple[PackedTensor | Tensor, PackedTensor | Tensor]", packed)
            )
        if _is_flat(tensor):
            return PackedTensor(tensor)
        return tensor

    def _packed_array(self, array: np.ndarray) -> np.ndarray:
        if array.dtype != object:
            return array
        values = array.ravel().tolist()
        if PLAIN.issuperset(map(type, values)):
            packed = values
        else:
            packed = [self.pack(one) for one in values]
        if all(new is old for new, old in zip(packed, values, strict=True)):
            return array
        column = np.empty(array.size, dtype=object)
        for row, value in enumerate(packed):
            column[row] = value
        return column.reshape(array.shape)


@cache
def _is_packed(cls: type) -> bool:
    # The classes of torch and tensordict answer `isinstance` slowly; once per class is enough.
    return issubclass(cls, Tensor | TensorDictBase | np.ndarray)


def _holds_nothing(value: object) -> bool:
    """Return True if a value certainly contains no tensor, by its type."""
    cls = type(value)
    if type(value) is dict:
        return PLAIN.issuperset(map(type, value.values()))
    if type(value) is list or type(value) is tuple:
        return PLAIN.issuperset(map(type, value))
    return cls in PLAIN or not _is_packed(cls)


def flat_bytes(tensor: Tensor) -> tuple[str, tuple[int, ...], np.ndarray]:
    """Return the name of the dtype, the shape, and the bytes in row order: its own memory for a
    contiguous tensor on the CPU."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().view(-1)
    return (
        str(tensor.dtype).removeprefix("torch."),
        tuple(tensor.shape),
        flat.view(torch.uint8).numpy(),
    )


def tensor_from_bytes(
    dtype: str, shape: tuple[int, ...], data: Bytes, device: str = "cpu"
) -> Tensor:
    """Return the tensor whose bytes are in a buffer, without copying them.

    Torch has no read-only memory. A tensor over a read-only buffer (the object store's) therefore
    shares it, and an in-place write changes the store: `DataProto.clone()` gives separate memory.
    """
    memory = memoryview(data.data if isinstance(data, np.ndarray) else data)
    torch_dtype = getattr(torch, dtype)
    if not memory.nbytes:
        return torch.empty(shape, dtype=torch_dtype, device=_present(device))
    flat = torch.from_numpy(
        np.asarray(_Writable(memory)) if memory.readonly else np.frombuffer(memory, np.uint8)
    )
    return flat.view(torch_dtype).view(shape).to(_present(device))


class _Writable:
    """Shows a read-only buffer to numpy as writable, which keeps torch from warning once per
    tensor."""

    def __init__(self, memory: memoryview) -> None:
        self.owner = np.frombuffer(memory, np.uint8)
        self.__array_interface__ = {
            **self.owner.__array_interface__,
            "data": (self.owner.ctypes.data, False),
        }


def _tensordict(
    values: dict[str, Tensor], batch_size: tuple[int, ...], device: str | None
) -> TensorDict:
    return TensorDict(
        values, batch_size=batch_size, device=None if device is None else _present(device)
    )


def _present(device: str) -> torch.device:
    """Return the device if this process has it, else the CPU."""
    wanted = torch.device(device)
    if wanted.type in ("cpu", "meta"):
        return wanted
    module = getattr(torch, wanted.type, None)
    found = (
        module is not None and module.is_available() and (wanted.index or 0) < module.device_count()
    )
    return wanted if found else torch.device("cpu")


def _is_flat(tensor: Tensor) -> bool:
    plain = type(tensor) in (Tensor, torch.nn.Parameter)
    return (
        plain
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and tensor.device.type != "meta"
    )


def _itself(tensor: Tensor) -> Tensor:
    return tensor
