"""Padding of a batch to a multiple of a number of workers."""

from __future__ import annotations

import logging
from typing import TypeVar

import numpy as np

from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.proto import DataProto

Proto = TypeVar("Proto", bound=DataProto)
logger = logging.getLogger(__name__)


def pad_dataproto_to_divisor(data: Proto, size_divisor: int) -> tuple[Proto, int]:
    """Append the first rows, repeatedly, until `size_divisor` divides the batch; return it and the
    number of appended rows.

    A batch without rows has nothing to repeat and stays unchanged. Raises: DataProtoError for a
    divisor below one.
    """
    if not isinstance(data, DataProto):
        raise DataProtoError(f"only a DataProto can be padded, not a {type(data).__name__}")
    if size_divisor < 1:
        raise DataProtoError(f"the divisor must be at least 1, not {size_divisor}")
    if not len(data):
        logger.warning("a batch without rows cannot be padded to a multiple of %d", size_divisor)
        return data, 0
    pad_size = -len(data) % size_divisor
    if pad_size:
        return (data.select_idxs(np.arange(len(data) + pad_size) % len(data)), pad_size)
    return (data, 0)


def unpad_dataproto(data: Proto, pad_size: int) -> Proto:
    """Return the batch without its last `pad_size` rows. Raises: DataProtoError when it has
    fewer."""
    if not 0 <= pad_size <= len(data):
        raise DataProtoError(f"cannot take {pad_size} padding rows off {len(data)} rows")
    if pad_size:
        return data.slice(0, len(data) - pad_size)
    return data
