"""Setting for padding batches that are cut, and stacking of rows of unequal length."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rl_core.data_proto.errors import DataProtoError


class _ConfigMeta(type):
    auto_padding_key = "_auto_padding"
    _auto_padding = False

    @property
    def auto_padding(cls) -> bool:
        """True if every batch of this process is padded when it is cut into chunks; off by
        default."""
        return _ConfigMeta._auto_padding

    @auto_padding.setter
    def auto_padding(cls, enabled: bool) -> None:
        if not isinstance(enabled, bool):
            raise DataProtoError(f"DataProtoConfig.auto_padding is True or False, not {enabled!r}")
        _ConfigMeta._auto_padding = enabled


class DataProtoConfig(metaclass=_ConfigMeta):
    """Process-wide settings: `DataProtoConfig.auto_padding = True`."""


def pad_rows(
    tensors: Sequence[Tensor], value: float, *, left: bool = False, length: int | None = None
) -> Tensor:
    """Stack 1-D tensors into [B, T], filled with `value` on the right (or left) up to the longest
    or `length`."""
    width = max((len(tensor) for tensor in tensors), default=0) if length is None else length
    out = torch.full((len(tensors), width), value, dtype=tensors[0].dtype)
    for row, tensor in enumerate(tensors):
        if left:
            out[row, width - len(tensor) :] = tensor
        else:
            out[row, : len(tensor)] = tensor
    return out
