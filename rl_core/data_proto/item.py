"""One row of a batch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tensordict import TensorDict


@dataclass
class DataProtoItem:
    """One row: a TensorDict without batch dimension, the row's objects, and the batch's metadata."""

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)
    jagged_keys: frozenset[str] = frozenset()
    """Tensors that were rows of a jagged column, which `collate_fn` makes one again whatever their lengths."""
