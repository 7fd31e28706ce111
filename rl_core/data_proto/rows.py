"""Selection of rows, the same for every column of a batch, as views if they are consecutive."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypedDict

import numpy as np
import torch
from tensordict import NestedKey, TensorCollection, TensorDict, TensorDictBase
from torch import Tensor

from rl_core.data_proto import jagged
from rl_core.data_proto.errors import DataProtoError

Value = Tensor | TensorCollection
"""Value of a column."""
Index = slice | range | Sequence[int] | Sequence[bool] | np.ndarray | Tensor


class Rows:
    """A selection out of `num_rows` rows.

    A slice with a positive step gives views. Everything else is one gather per column (which
    copies). Raises: DataProtoError for an index of another type, rank or mask length; IndexError
    for a row that is not there.
    """

    def __init__(self, index: Index, num_rows: int) -> None:
        if isinstance(index, slice) and (index.step or 1) < 0:
            index = range(*index.indices(num_rows))
        self.slice: slice | None = index if isinstance(index, slice) else None
        if isinstance(index, slice):
            self.span = range(*index.indices(num_rows))
            self.count = len(self.span)
        else:
            self.array = _positions(index, num_rows)
            self.tensor = torch.from_numpy(self.array)
            self.count = len(self.array)
        # The key is the identity of the old offsets, which are kept alive beside it.
        self._plans: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def of_batch(self, batch: TensorDictBase | None) -> TensorDict | None:
        """Return the rows of a batch, as a new TensorDict on the same device."""
        if batch is None:
            return None
        return unchecked(
            {key: self.of(value) for key, value in batch.items()}, self.count, batch.device
        )

    def of(self, value: Value) -> Value:
        """Return the rows of one value of a batch: a tensor, a jagged tensor or a TensorDict."""
        if isinstance(value, Tensor) and value.is_nested:
            return self._of_jagged(value)
        if isinstance(value, Tensor) and self.slice is None:
            return value.index_select(0, self._on(value.device))
        return value[self.slice if self.slice is not None else self.tensor]

    def of_columns(self, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the rows of numpy columns, with unchanged dtypes."""
        at = self.slice if self.slice is not None else self.array
        return {key: column[at] for key, column in columns.items()}

    def _of_jagged(self, nested: Tensor) -> Tensor:
        values, offsets = jagged.parts(nested)
        if self.slice is not None and self.span.step == 1:
            first, last = (
                int(offsets[self.span.start]),
                int(offsets[max(self.span.start, self.span.stop)]),
            )
            if id(offsets) not in self._plans:
                taken = offsets[self.span.start : max(self.span.start, self.span.stop) + 1] - first
                self._plans[id(offsets)] = (offsets, taken, taken)
            return jagged.join(values[first:last], self._plans[id(offsets)][1])
        if id(offsets) not in self._plans:
            if self.slice is not None:
                index = torch.tensor(list(self.span), dtype=torch.long)
            else:
                index = self.tensor
            self._plans[id(offsets)] = (offsets, *jagged.gather_plan(offsets, index))
        _, taken, positions = self._plans[id(offsets)]
        return jagged.join(values.index_select(0, positions), taken)

    def _on(self, device: torch.device) -> Tensor:
        if self.tensor.device != device:
            self.tensor = self.tensor.to(device)
        return self.tensor


def consecutive(
    batch: TensorDictBase | None, columns: dict[str, np.ndarray], num_rows: int, size: int
) -> Iterator[tuple[TensorDict | None, dict[str, np.ndarray]]]:
    """Yield pairs (batch, columns) of at most `size` consecutive rows each, as views."""
    if not num_rows:
        return iter(())
    spans = []
    for start in range(0, num_rows, size):
        spans.append(slice(start, min(start + size, num_rows)))
    arrays = []
    for span in spans:
        arrays.append({key: column[span] for key, column in columns.items()})
    if batch is None:
        return zip([None] * len(spans), arrays, strict=True)
    rows: list[Rows] = []
    cut: list[Sequence[Value]] = []
    keys = list(batch.keys())
    for value in batch.values():
        if isinstance(value, Tensor) and not value.is_nested:
            cut.append(value.split(size))
        else:
            rows = rows or [Rows(span, num_rows) for span in spans]
            cut.append([one.of(value) for one in rows])
    device = batch.device
    if cut:
        tables = []
        for values in zip(*cut, strict=True):
            tables.append(dict(zip(keys, values, strict=True)))
    else:
        tables = [{} for _ in spans]
    batches = []
    for table, span in zip(tables, spans, strict=True):
        batches.append(unchecked(table, span.stop - span.start, device))
    return zip(batches, arrays, strict=True)


def unchecked(
    values: Mapping[str, Value], num_rows: int, device: torch.device | None
) -> TensorDict:
    """A TensorDict of values known to have `num_rows` rows.

    Its public constructor would check every one again; this can go when there is one that does not.
    """
    source: dict[NestedKey, Value] = {**values}
    return TensorDict._new_unsafe(source, batch_size=torch.Size([num_rows]), device=device)


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
"""DataLoader settings about background loading, which have no effect on rows in memory."""


class LoaderOptions(TypedDict, total=False):
    """Settings of a DataLoader that choose rows; those of `NO_EFFECT` may stand beside them."""

    shuffle: bool
    sampler: Iterable[int] | None
    generator: torch.Generator | None
    drop_last: bool


def mini_batch_rows(
    num_rows: int,
    mini_batch_size: int,
    epochs: int,
    seed: int | None,
    dataloader_kwargs: LoaderOptions | None,
) -> Iterator[slice | Tensor]:
    """Yield the rows of each mini-batch; the arguments are checked now, not at the first
    mini-batch."""
    options = dataloader_kwargs or LoaderOptions()
    generator = options.get("generator")
    shuffle = bool(options.get("shuffle", seed is not None))
    sampler = options.get("sampler")
    drop_last = bool(options.get("drop_last", False))
    known = sorted({*LoaderOptions.__annotations__, *NO_EFFECT})
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise DataProtoError(f"make_iterator: no dataloader_kwargs {unknown}; there are {known}")
    if mini_batch_size < 1 or (num_rows % mini_batch_size and not drop_last):
        raise DataProtoError(
            f"make_iterator: {num_rows} rows do not divide into mini-batches of {mini_batch_size}"
        )
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
    return _mini_batch_rows(num_rows, mini_batch_size, epochs, shuffle, sampler, generator)


def _mini_batch_rows(
    num_rows: int,
    size: int,
    epochs: int,
    shuffle: bool,
    sampler: Iterable[int] | None,
    generator: torch.Generator | None,
) -> Iterator[slice | Tensor]:
    for _ in range(epochs):
        order: Tensor | None = None
        if sampler is not None:
            order = torch.as_tensor(list(sampler), dtype=torch.long)
        elif shuffle:
            order = torch.randperm(num_rows, generator=generator)
        count = num_rows if order is None else len(order)
        for start in range(0, count - count % size, size):
            rows = slice(start, start + size)
            yield rows if order is None else order[rows]


def _positions(index: Index, num_rows: int) -> np.ndarray:
    """Return [K] non-negative row numbers."""
    array = index.detach().cpu().numpy() if isinstance(index, Tensor) else np.asarray(index)
    if array.ndim != 1:
        raise DataProtoError(
            f"rows are chosen by a one-dimensional index, not one of shape {array.shape}"
        )
    if array.dtype == np.bool_:
        if len(array) != num_rows:
            raise DataProtoError(
                f"a mask of shape {array.shape} cannot choose among {num_rows} rows"
            )
        return np.flatnonzero(array)
    if not len(array):
        return np.zeros(0, dtype=np.int64)
    if not np.issubdtype(array.dtype, np.integer):
        raise DataProtoError(f"rows are chosen by integers or a mask, not by {array.dtype}")
    array = array.astype(np.int64)
    if array.min() < -num_rows or array.max() >= num_rows:
        wrong = array[(array < -num_rows) | (array >= num_rows)][0]
        raise IndexError(f"row {wrong} is not among the {num_rows} rows")
    return np.where(array < 0, array + num_rows, array)
