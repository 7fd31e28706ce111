"""What every part of DataProto stands on: its three fields, their contract, and copies in memory and on disk."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

import numpy as np
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl_core.data_proto import convert, info, jagged, storage
from rl_core.data_proto.columns import as_column, copied
from rl_core.data_proto.errors import DataProtoError, DataProtoKeyError
from rl_core.data_proto.padding import DataProtoConfig
from rl_core.data_proto.pickling import PackedTensorDict, Packer


@dataclass(eq=False)
class DataProtoCore:
    """The fields, their contract, and making, copying and describing one."""

    batch: TensorDict | None = None
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.non_tensor_batch = {} if self.non_tensor_batch is None else self.non_tensor_batch
        self.meta_info = {} if self.meta_info is None else self.meta_info
        self.check_consistency()

    @classmethod
    def from_dict(
        cls,
        tensors: dict[str, Tensor] | None = None,
        non_tensors: dict[str, Any] | None = None,
        meta_info: dict[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> Self:
        """A batch from plain mappings, which stay as they are; lists become object arrays.

        Args: auto_padding: pad when cut into chunks that the rows do not fill.
        Raises: DataProtoError on unequal lengths, or on more than one batch dimension (`fold_batch_dim` groups rows).
        """
        if num_batch_dims != 1:
            raise DataProtoError(f"a DataProto has one batch dimension, not {num_batch_dims}")
        for key, tensor in (tensors or {}).items():
            check_tensor(key, tensor)
        lengths = {key: tensor.shape[0] for key, tensor in (tensors or {}).items()}
        if len(set(lengths.values())) > 1:
            raise DataProtoError(f"tensors differ in their leading dimension: {lengths}")
        batch = TensorDict(dict(tensors), batch_size=[next(iter(lengths.values()))]) if tensors else None
        columns = {key: as_column(key, values) for key, values in (non_tensors or {}).items()}
        meta = dict(meta_info or {})
        if auto_padding:
            meta[DataProtoConfig.auto_padding_key] = True
        return cls(batch=batch, non_tensor_batch=columns, meta_info=meta)

    @classmethod
    def from_single_dict(
        cls, data: dict[str, Tensor | np.ndarray], meta_info: dict[str, Any] | None = None, auto_padding: bool = False
    ) -> Self:
        """A batch from one mapping: tensors to `batch`, arrays to `non_tensor_batch`.

        Raises: DataProtoError for a value of another kind.
        """
        for key, value in data.items():
            if not isinstance(value, Tensor | np.ndarray):
                raise DataProtoError(f"{key!r} is a {type(value).__name__}; a column is a tensor or a numpy array")
        return cls.from_dict(
            {key: value for key, value in data.items() if isinstance(value, Tensor)},
            {key: value for key, value in data.items() if isinstance(value, np.ndarray)},
            meta_info,
            auto_padding=auto_padding,
        )

    @classmethod
    def from_tensordict(
        cls, tensor_dict: TensorDict, meta_info: dict[str, Any] | None = None, num_batch_dims: int = 1
    ) -> Self:
        """The inverse of `to_tensordict`: stacks of objects become columns, single objects metadata."""
        if num_batch_dims != 1:
            raise DataProtoError(f"a DataProto has one batch dimension, not {num_batch_dims}")
        tensors, columns, meta = convert.parts_of(tensor_dict)
        return cls.from_dict(tensors, columns, {**(meta_info or {}), **meta})

    def to_tensordict(self) -> TensorDict:
        """One TensorDict of everything. Raises: DataProtoError for a name that is used twice."""
        return convert.tensordict_of(self)

    def derived(self, batch: TensorDict | None, columns: dict[str, np.ndarray], meta_info: dict[str, Any]) -> Self:
        """One of the same class, with the attributes a subclass has added; nothing is checked."""
        new = object.__new__(type(self))
        new.__dict__.update(self.__dict__)
        new.batch, new.non_tensor_batch, new.meta_info = batch, columns, meta_info
        return new

    def clone(self) -> Self:
        """A copy with memory of its own, down to the tensors of `batch`; objects in columns are shared."""
        batch = None if self.batch is None else self.batch.clone()
        columns = {key: column.copy() for key, column in self.non_tensor_batch.items()}
        return self.derived(batch, columns, copied(self.meta_info))

    def check_consistency(self) -> None:
        """Raises: DataProtoError when a column is of another kind or length than the batch."""
        if self.batch is not None:
            if not isinstance(self.batch, TensorDictBase):
                raise DataProtoError(f"batch is a {type(self.batch).__name__}, not a TensorDict")
            if len(self.batch.batch_size) != 1:
                raise DataProtoError(f"a DataProto has one batch dimension, not {list(self.batch.batch_size)}")
            for key, value in self.batch.items():
                if isinstance(value, Tensor):
                    check_tensor(str(key), value)
        num_rows = len(self)
        for key, column in self.non_tensor_batch.items():
            if not isinstance(column, np.ndarray) or not column.ndim or len(column) != num_rows:
                shape = getattr(column, "shape", type(column).__name__)
                raise DataProtoError(f"non_tensor_batch[{key!r}] has shape {shape}, the batch has {num_rows} rows")

    def __len__(self) -> int:
        if self.batch is not None:
            return self.batch.batch_size[0]
        first = next(iter(self.non_tensor_batch.values()), None)
        # A column that has no length is for `check_consistency` to name.
        return 0 if first is None or not np.ndim(first) else len(first)

    def tensor(self, key: str) -> Tensor:
        """One tensor column. Raises: DataProtoKeyError naming the columns there are."""
        if self.batch is None or key not in self.batch.keys():  # noqa: SIM118
            missing("tensor", key, () if self.batch is None else self.batch.keys())
        return self.batch[key]

    def get_data_info(self) -> str:
        """Shapes, dtypes and devices of the columns, and the types of the metadata, one per line."""
        return info.listing(self)

    def print_size(self, prefix: str = "") -> None:
        """Print the sizes of tensors and columns, in GB."""
        print(info.size_line(self, prefix))

    def save_to_disk(self, filepath: str | Any) -> None:
        """Write the batch to a file: complete, or not there."""
        storage.save(self, filepath)

    @staticmethod
    def load_from_disk(filepath: str | Any) -> Any:
        """The batch in a file, as the class that wrote it. A pickle: load only what you trust.

        Raises: DataProtoError for a damaged file or one that holds something else.
        """
        return storage.load(filepath)

    def __getstate__(self) -> dict[str, Any]:
        return Packer().pack(dict(self.__dict__))

    def __setstate__(self, state: dict[str, Any]) -> None:
        if isinstance(state["batch"], PackedTensorDict):
            # Handed over as it is, without going through a pickle.
            state = pickle.loads(pickle.dumps(state, protocol=5))
        self.__dict__.update(state)

    def __copy__(self) -> Self:
        batch = None if self.batch is None else self.batch.clone(recurse=False)
        return self.derived(batch, dict(self.non_tensor_batch), dict(self.meta_info))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        new = object.__new__(type(self))
        memo[id(self)] = new
        attributes = {key: value for key, value in self.__dict__.items() if key != "batch"}
        new.__dict__.update(copy.deepcopy(attributes, memo))
        new.batch = None if self.batch is None else self.batch.clone()
        return new


def check_tensor(key: str, tensor: Any) -> None:
    if not isinstance(tensor, Tensor):
        raise DataProtoError(f"batch[{key!r}] is a {type(tensor).__name__}, not a tensor")
    jagged.check_layout(key, tensor)
    if not tensor.dim():
        raise DataProtoError(f"batch[{key!r}] has shape [], and no dimension of rows")


def missing(kind: str, key: str, there: Iterable[Any]) -> NoReturn:
    raise DataProtoKeyError(f"no {kind} {key!r} in the batch; it has {sorted(map(str, there))}")
