"""Methods of verl's DataProto that only code written for verl calls."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np
from tensordict import TensorDict
from torch import Tensor

from rl_core.data_proto.columns import MetaInfo, copied, num_bytes, type_name
from rl_core.data_proto.compare import shape_of
from rl_core.data_proto.compat.column_chunks import chunked
from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.rows import Index, Rows


class VerlMethods:
    """Base of `DataProto` with the methods that nothing here calls: repeats and chunks by row or
    column, padding in place, and descriptions."""

    if TYPE_CHECKING:
        batch: TensorDict | None
        non_tensor_batch: dict[str, np.ndarray]
        meta_info: MetaInfo

        def __len__(self) -> int: ...
        def select_idxs(self, idxs: Index) -> Self: ...
        def derived(
            self, batch: TensorDict | None, columns: dict[str, np.ndarray], meta_info: MetaInfo
        ) -> Self: ...

    def sample_level_repeat(self, repeat_times: Sequence[int] | np.ndarray | Tensor) -> Self:
        """Repeat row i `repeat_times[i]` times. Raises: DataProtoError unless there is one
        non-negative integer per row."""
        if isinstance(repeat_times, Tensor):
            times = repeat_times.detach().cpu().numpy()
        else:
            times = np.asarray(repeat_times)
        whole = not times.size or np.issubdtype(times.dtype, np.integer)
        if times.shape != (len(self),) or not whole or (times.size and times.min() < 0):
            raise DataProtoError(
                f"repeat_times is one non-negative integer for each of {len(self)} rows, not "
                f"{times!r}"
            )
        return self.select_idxs(np.repeat(np.arange(len(self)), times.astype(np.int64)))

    def unfold_column_chunks(self, n_split: int, split_keys: Collection[str] | None = None) -> Self:
        """Reshape [N, n_split * C, ...] to [N * n_split, C, ...] for the columns in `split_keys`;
        rows of the others repeat.

        A jagged column is cut by each row's length, an object column by each object's. Raises:
        DataProtoError naming a column that does not divide.
        """
        if n_split < 1:
            raise DataProtoError(f"columns are cut into at least 1 chunk, not {n_split}")
        wanted = set(split_keys or ())
        rows = Rows(np.repeat(np.arange(len(self)), n_split), len(self))
        batch = None
        if self.batch is not None:
            values = {}
            for key, value in self.batch.items():
                values[key] = chunked(key, value, n_split) if key in wanted else rows.of(value)
            batch = TensorDict(values, batch_size=[rows.count], device=self.batch.device)
        columns = {}
        for key, column in self.non_tensor_batch.items():
            columns[key] = chunked(key, column, n_split) if key in wanted else column[rows.array]
        return self.derived(batch, columns, copied(self.meta_info))

    def reorder(self, indices: Index) -> Self:
        """Put the rows in the given order, in place."""
        ordered = self.select_idxs(indices)
        self.batch, self.non_tensor_batch = ordered.batch, ordered.non_tensor_batch
        return self

    def padding(self, padding_size: int, padding_candidate: str = "") -> Self:
        """Append `padding_size` copies of the last row (of the first for `"first"`), in place."""
        if padding_candidate not in ("", "first", "last"):
            raise DataProtoError(
                f"padding_candidate is 'first' or 'last', not {padding_candidate!r}"
            )
        if padding_size < 0 or (padding_size and not len(self)):
            raise DataProtoError(f"cannot pad {len(self)} rows by {padding_size}")
        if not padding_size:
            return self
        row = 0 if padding_candidate == "first" else len(self) - 1
        return self.reorder(np.concatenate([np.arange(len(self)), np.full(padding_size, row)]))

    def get_data_info(self) -> str:
        """Return shapes, dtypes and devices of columns, and types of metadata, one per line."""
        lines = ["batch"]
        for key, value in () if self.batch is None else self.batch.items():
            if isinstance(value, Tensor):
                shape = ", ".join(str(size) for size in shape_of(value))
                comma = "," if value.dim() == 1 else ""
                lines.append(f"  {key}: ({shape}{comma}) ({value.dtype}) {value.device}")
            else:
                lines.append(f"  {key}: {type(value).__name__}")
        lines.append("non_tensor_batch")
        lines += [f"  {key}: {type_name(column)}" for key, column in self.non_tensor_batch.items()]
        lines.append("meta_info")
        lines += [f"  {key}: {type_name(value)}" for key, value in self.meta_info.items()]
        return "\n".join(lines)

    def print_size(self, prefix: str = "") -> None:
        """Print the sizes of the tensors and of the columns, in GB (2^30 bytes)."""
        tensors = 0 if self.batch is None else num_bytes(self.batch)
        columns = sum(num_bytes(column) for column in self.non_tensor_batch.values())
        line = (
            f"Size of tensordict: {tensors / 2**30} GB, size of non_tensor_batch: "
            f"{columns / 2**30} GB"
        )
        print(f"{prefix}, {line}" if prefix else line)
