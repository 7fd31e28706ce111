"""The methods of DataProto that choose, add and rename columns."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, Self

import torch

from rl_core.data_proto import merge
from rl_core.data_proto.columns import copied, key_list
from rl_core.data_proto.core import DataProtoCore, missing
from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.rows import unchecked


class ColumnMethods(DataProtoCore):
    """Choosing, adding and renaming columns."""

    def select(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
        deepcopy: bool = False,
    ) -> Self:
        """The named columns and metadata; all of a kind where none are named.

        Names that are not among the objects or the metadata are left out, as callers may name optional ones.
        Raises: DataProtoKeyError for a tensor that is not there.
        """
        batch = self.batch
        if batch is not None:
            wanted = list(batch.keys()) if batch_keys is None else key_list(batch_keys)
            batch = unchecked({key: self.tensor(key) for key in wanted}, len(self), batch.device)
        elif batch_keys is not None:
            for key in key_list(batch_keys):
                self.tensor(key)
        columns = _only(self.non_tensor_batch, non_tensor_batch_keys)
        chosen = self.derived(batch, columns, copied(_only(self.meta_info, meta_info_keys)))
        return copy.deepcopy(chosen) if deepcopy else chosen

    def pop(
        self,
        batch_keys: Iterable[str] | None = None,
        non_tensor_batch_keys: Iterable[str] | None = None,
        meta_info_keys: Iterable[str] | None = None,
    ) -> Self:
        """Take the named columns and metadata out, in place, and return them.

        Raises: DataProtoKeyError, taking nothing, for a name that is not there.
        """
        tensors, columns, metas = key_list(batch_keys), key_list(non_tensor_batch_keys), key_list(meta_info_keys)
        for key in tensors:
            self.tensor(key)
        for kind, keys, held in (("column", columns, self.non_tensor_batch), ("metadata", metas, self.meta_info)):
            for key in keys:
                if key not in held:
                    missing(kind, key, held)
        taken = {key: self.tensor(key) for key in tensors}
        batch = None
        if taken and self.batch is not None:
            batch = unchecked(taken, len(self), self.batch.device)
            self.batch = self.batch.exclude(*taken)
        return self.derived(
            batch,
            {key: self.non_tensor_batch.pop(key) for key in dict.fromkeys(columns)},
            {key: self.meta_info.pop(key) for key in dict.fromkeys(metas)},
        )

    def rename(self, old_keys: str | list[str] | None = None, new_keys: str | list[str] | None = None) -> Self:
        """Give tensors other names, in place; names may be swapped.

        Raises: DataProtoError, changing nothing, when the numbers of names differ, one is missing or would be double.
        """
        for keys in (old_keys, new_keys):
            if keys is not None and not isinstance(keys, str | list):
                raise TypeError(f"keys are a string or a list of strings, not a {type(keys).__name__}")
        old, new = key_list(old_keys), key_list(new_keys)
        if len(old) != len(new):
            raise DataProtoError(f"rename: {len(old)} old names {old} and {len(new)} new names {new}")
        for key in old:
            self.tensor(key)
        if self.batch is not None:
            names = dict(zip(old, new, strict=True))
            renamed: list[Any] = [names.get(key, key) for key in self.batch.keys()]  # noqa: SIM118
            if len(set(renamed)) != len(renamed):
                raise DataProtoError(f"rename: {old} to {new} would give the tensors the names {renamed}")
            self.batch = unchecked(dict(zip(renamed, self.batch.values(), strict=True)), len(self), self.batch.device)
        return self

    def union(self, other: DataProtoCore) -> Self:
        """Add the columns and metadata of `other`, in place.

        Raises: DataProtoError, changing nothing, when the lengths, a shared column or a shared metadata value differ.
        """
        mine = {} if self.batch is None else dict(self.batch.items())
        theirs = {} if other.batch is None else dict(other.batch.items())
        added = theirs | other.non_tensor_batch
        if (self.batch is not None or self.non_tensor_batch) and added and len(other) != len(self):
            shapes = {key: tuple(merge.shape_of(column)) for key, column in added.items()}
            raise DataProtoError(f"union: the added columns have shapes {shapes}, the batch has {len(self)} rows")
        merge.check_shared(mine, theirs, "tensor")
        merge.check_shared(self.non_tensor_batch, other.non_tensor_batch, "column")
        merge.check_shared(self.meta_info, other.meta_info, "metadata")
        if self.batch is None:
            self.batch = None if other.batch is None else unchecked(theirs, len(other), other.batch.device)
        else:
            batch = self.batch.clone(recurse=False) if self.batch.is_locked else self.batch
            self.batch = batch.update({key: value for key, value in theirs.items() if key not in mine})
        self.non_tensor_batch.update(other.non_tensor_batch)
        self.meta_info = copied(other.meta_info) | self.meta_info
        return self

    def to(self, device: str | torch.device) -> Self:
        """Move the tensors of `batch`, in place."""
        if self.batch is not None:
            self.batch = self.batch.to(device)
        return self


def _only(values: dict[str, Any], keys: Iterable[str] | None) -> dict[str, Any]:
    if keys is None:
        return dict(values)
    wanted = set(key_list(keys))
    return {key: value for key, value in values.items() if key in wanted}
