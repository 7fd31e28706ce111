"""Making row counts divide, and rows of unequal length one tensor."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_core.data_proto.errors import DataProtoError

if TYPE_CHECKING:
    from rl_core.data_proto.proto import DataProto

Proto = TypeVar("Proto", bound="DataProto")
logger = logging.getLogger(__name__)


class _ConfigMeta(type):
    auto_padding_key = "_auto_padding"
    _auto_padding = False

    @property
    def auto_padding(cls) -> bool:
        """Whether every batch of this process is padded when it is cut into chunks; off unless set."""
        return _ConfigMeta._auto_padding

    @auto_padding.setter
    def auto_padding(cls, enabled: bool) -> None:
        if not isinstance(enabled, bool):
            raise DataProtoError(f"DataProtoConfig.auto_padding is True or False, not {enabled!r}")
        _ConfigMeta._auto_padding = enabled


class DataProtoConfig(metaclass=_ConfigMeta):
    """Process-wide settings: `DataProtoConfig.auto_padding = True`."""


def pad_dataproto_to_divisor(data: Proto, size_divisor: int) -> tuple[Proto, int]:
    """The batch with its first rows appended, over and over, until `size_divisor` divides it, and how many they are.

    A batch without rows has nothing to repeat and stays as it is. Raises: DataProtoError for a divisor below one.
    """
    from rl_core.data_proto.proto import DataProto

    if not isinstance(data, DataProto):
        raise DataProtoError(f"only a DataProto can be padded, not a {type(data).__name__}")
    if size_divisor < 1:
        raise DataProtoError(f"the divisor must be at least 1, not {size_divisor}")
    if not len(data):
        logger.warning("a batch without rows cannot be padded to a multiple of %d", size_divisor)
        return data, 0
    pad_size = -len(data) % size_divisor
    return (data.select_idxs(np.arange(len(data) + pad_size) % len(data)), pad_size) if pad_size else (data, 0)


def unpad_dataproto(data: Proto, pad_size: int) -> Proto:
    """The batch without its last `pad_size` rows. Raises: DataProtoError when it has fewer."""
    if not 0 <= pad_size <= len(data):
        raise DataProtoError(f"cannot take {pad_size} padding rows off {len(data)} rows")
    return data.slice(0, len(data) - pad_size) if pad_size else data


def pad_rows(tensors: Sequence[Tensor], value: float, *, left: bool = False, length: int | None = None) -> Tensor:
    """Stack 1-D tensors into [B, T], filled with `value` on the right (or left) up to the longest or `length`."""
    width = max((len(tensor) for tensor in tensors), default=0) if length is None else length
    out = torch.full((len(tensors), width), value, dtype=tensors[0].dtype)
    for row, tensor in enumerate(tensors):
        if left:
            out[row, width - len(tensor) :] = tensor
        else:
            out[row, : len(tensor)] = tensor
    return out
