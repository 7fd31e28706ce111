"""The methods of DataProto that choose, cut, repeat and join rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Self

import numpy as np
from torch import Tensor

from rl_core.data_proto import fold, iterate, merge
from rl_core.data_proto.columns import copied
from rl_core.data_proto.core import DataProtoCore
from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.item import DataProtoItem
from rl_core.data_proto.jagged import is_jagged
from rl_core.data_proto.padding import DataProtoConfig
from rl_core.data_proto.rows import Index, Rows, consecutive


class RowMethods(DataProtoCore):
    """Choosing, cutting, repeating and joining rows."""

    def __getitem__(self, index: Any) -> Any:
        """A DataProto for a slice, list, array or mask, a DataProtoItem for an integer.

        Raises: IndexError for a row that is not there, TypeError for another kind of index.
        """
        if isinstance(index, int | np.integer) and not isinstance(index, bool):
            return self._item(int(index))
        if isinstance(index, slice):
            return self.slice(index.start, index.stop, index.step)
        if isinstance(index, list | np.ndarray | Tensor | range):
            return self.select_idxs(index)
        raise TypeError(f"rows are chosen by an int, slice, list, array or mask, not by a {type(index).__name__}")

    def slice(self, start: int | None = None, end: int | None = None, step: int | None = None) -> Self:
        """Rows `start` to `end` (exclusive) as views of the same memory; a negative step copies."""
        return self._rows(Rows(slice(start, end, step), len(self)))

    def select_idxs(self, idxs: Index) -> Self:
        """The rows at `idxs` (positions, also negative and repeated, or a boolean mask), copied by one gather."""
        return self._rows(Rows(idxs, len(self)))

    def chunk(self, chunks: int) -> list[Self]:
        """`chunks` equal consecutive parts, as views.

        With padding enabled, rows that do not divide are first filled up with copies of the last row; this batch stays
        as it is. Raises: DataProtoError when the rows do not divide otherwise.
        """
        num_rows = len(self)
        if chunks < 1 or (num_rows % chunks and not self.is_padding_enabled()):
            raise DataProtoError(f"cannot cut {num_rows} rows into {chunks} equal parts")
        if not num_rows:
            return [self.slice(0, 0) for _ in range(chunks)]
        if num_rows % chunks:
            size = -(-num_rows // chunks)
            return self.select_idxs(np.minimum(np.arange(size * chunks), num_rows - 1)).split(size)
        return self.split(num_rows // chunks)

    def split(self, split_size: int) -> list[Self]:
        """Consecutive parts of at most `split_size` rows, as views."""
        if split_size < 1:
            raise DataProtoError(f"parts have at least 1 row, not {split_size}")
        parts = consecutive(self.batch, self.non_tensor_batch, len(self), split_size)
        return [self.derived(batch, columns, copied(self.meta_info)) for batch, columns in parts]

    def make_iterator(
        self,
        mini_batch_size: int,
        epochs: int,
        seed: int | None = None,
        dataloader_kwargs: dict[str, Any] | None = None,
    ) -> Iterator[Self]:
        """Mini-batches of `mini_batch_size` rows, `epochs` times over.

        A seed shuffles, each epoch anew and every run alike, unless `dataloader_kwargs` says `shuffle=False`. Known
        there, too: `sampler`, `generator`, `drop_last`. Settings of background loading have no effect.
        Raises: DataProtoError, at the call, when the rows do not divide (without `drop_last`) or a setting is unknown.
        """
        return iterate.mini_batches(self, mini_batch_size, epochs, seed, dataloader_kwargs)

    @staticmethod
    def concat(data: Sequence[Any]) -> Any:
        """The rows of all parts, in order, as the class of the first.

        `meta_info` is joined: `metrics` become lists of the parts' values, other shared keys agree (floats to 1e-6).
        Raises: DataProtoError for no parts, or naming the column or key that differs.
        """
        parts = list(data)
        if not parts:
            raise DataProtoError("concat: there is nothing to join; give at least one DataProto")
        batch = merge.cat_batches([part.batch for part in parts])
        columns = merge.cat_columns([part.non_tensor_batch for part in parts])
        return parts[0].derived(batch, columns, merge.merged_meta([part.meta_info for part in parts]))

    def repeat(self, repeat_times: int = 2, interleave: bool = True) -> Self:
        """Each row `repeat_times` times: aabb when interleaved, abab otherwise."""
        if repeat_times < 0:
            raise DataProtoError(f"rows cannot be repeated {repeat_times} times")
        rows = np.arange(len(self))
        return self.select_idxs(np.repeat(rows, repeat_times) if interleave else np.tile(rows, repeat_times))

    def sample_level_repeat(self, repeat_times: Sequence[int] | np.ndarray | Tensor) -> Self:
        """Row i `repeat_times[i]` times. Raises: DataProtoError unless there is one non-negative integer per row."""
        times = repeat_times.detach().cpu().numpy() if isinstance(repeat_times, Tensor) else np.asarray(repeat_times)
        whole = not times.size or np.issubdtype(times.dtype, np.integer)
        if times.shape != (len(self),) or not whole or (times.size and times.min() < 0):
            raise DataProtoError(
                f"repeat_times is one non-negative integer for each of {len(self)} rows, not {times!r}"
            )
        return self.select_idxs(np.repeat(np.arange(len(self)), times.astype(np.int64)))

    def unfold_column_chunks(self, n_split: int, split_keys: Collection[str] | None = None) -> Self:
        """[N, n_split * C, ...] to [N * n_split, C, ...] for the columns in `split_keys`; rows of the others repeat.

        A jagged column is cut by each row's length, an object column by each object's.
        Raises: DataProtoError naming a column that does not divide.
        """
        return fold.unfold_columns(self, n_split, split_keys)

    def reorder(self, indices: Index) -> Self:
        """Put the rows in the given order, in place."""
        ordered = self.select_idxs(indices)
        self.batch, self.non_tensor_batch = ordered.batch, ordered.non_tensor_batch
        return self

    def padding(self, padding_size: int, padding_candidate: str = "") -> Self:
        """Append `padding_size` copies of the last row (of the first for `"first"`), in place."""
        if padding_candidate not in ("", "first", "last"):
            raise DataProtoError(f"padding_candidate is 'first' or 'last', not {padding_candidate!r}")
        if padding_size < 0 or (padding_size and not len(self)):
            raise DataProtoError(f"cannot pad {len(self)} rows by {padding_size}")
        if not padding_size:
            return self
        row = 0 if padding_candidate == "first" else len(self) - 1
        return self.reorder(np.concatenate([np.arange(len(self)), np.full(padding_size, row)]))

    def is_padding_enabled(self) -> bool:
        """Whether `chunk` may pad: asked for by this batch (`auto_padding`) or by `DataProtoConfig`."""
        return bool(self.meta_info.get(DataProtoConfig.auto_padding_key, False)) or DataProtoConfig.auto_padding

    def _item(self, row: int) -> DataProtoItem:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is not among the {len(self)} rows")
        batch = None if self.batch is None else self.batch[row]
        columns = {key: column[row] for key, column in self.non_tensor_batch.items()}
        table = () if self.batch is None else self.batch.items()
        ragged = frozenset(key for key, value in table if is_jagged(value))
        return DataProtoItem(batch, columns, copied(self.meta_info), ragged)

    def _rows(self, rows: Rows) -> Self:
        return self.derived(rows.of_batch(self.batch), rows.of_columns(self.non_tensor_batch), copied(self.meta_info))
