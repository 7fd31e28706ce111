"""Mini-batches of a batch: views of consecutive rows, or one gather per mini-batch when shuffled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from rl_core.data_proto.errors import DataProtoError

if TYPE_CHECKING:
    from rl_core.data_proto.row_methods import RowMethods

Proto = TypeVar("Proto", bound="RowMethods")

NO_EFFECT = {
    "num_workers",
    "pin_memory",
    "pin_memory_device",
    "prefetch_factor",
    "persistent_workers",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "in_order",
}
"""DataLoader settings about loading in the background; here the rows are in memory already."""


def mini_batches(
    data: Proto, mini_batch_size: int, epochs: int, seed: int | None, dataloader_kwargs: dict[str, Any] | None
) -> Iterator[Proto]:
    """The work of `DataProto.make_iterator`; the arguments are checked now, not at the first mini-batch."""
    options = dict(dataloader_kwargs or {})
    generator = options.pop("generator", None)
    shuffle = bool(options.pop("shuffle", seed is not None))
    sampler = options.pop("sampler", None)
    drop_last = bool(options.pop("drop_last", False))
    unknown = sorted(options.keys() - NO_EFFECT)
    if unknown:
        known = sorted({"drop_last", "generator", "sampler", "shuffle"} | NO_EFFECT)
        raise DataProtoError(f"make_iterator: no dataloader_kwargs {unknown}; there are {known}")
    if mini_batch_size < 1 or (len(data) % mini_batch_size and not drop_last):
        raise DataProtoError(f"make_iterator: {len(data)} rows do not divide into mini-batches of {mini_batch_size}")
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
    return _iterate(data, mini_batch_size, epochs, shuffle, sampler, generator)


def _iterate(
    data: Proto, size: int, epochs: int, shuffle: bool, sampler: Any, generator: torch.Generator | None
) -> Iterator[Proto]:
    for _ in range(epochs):
        order: Tensor | None = None
        if sampler is not None:
            order = torch.as_tensor(list(sampler), dtype=torch.long)
        elif shuffle:
            order = torch.randperm(len(data), generator=generator)
        num_rows = len(data) if order is None else len(order)
        for start in range(0, num_rows - num_rows % size, size):
            rows = slice(start, start + size)
            yield data.slice(rows.start, rows.stop) if order is None else data.select_idxs(order[rows])
