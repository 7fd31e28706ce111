"""Columns that the driver puts over rows that lie elsewhere, in the order in which it put them.

A layer is a batch of columns whose values the driver has, or one `Derived` column: a rule that is
applied where rows are read, to columns below it and to a few numbers of each row. So a change of a
column by action costs the driver the numbers of its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import torch
from tensordict import TensorDict
from torch import Tensor

from rl_core.data_proto import DataProto, MetaInfo


@dataclass(frozen=True)
class Derived:
    """A tensor column that is computed where rows are read."""

    key: str
    """Name of the column; it may be one of `needs`, whose values below it then change."""
    needs: tuple[str, ...]
    """Columns that the rule gets first."""
    rule: Callable[..., Tensor]
    """Function of a module, which every rank imports; it computes each row from that row alone."""
    numbers: tuple[Tensor, ...]
    """Further arguments of the rule, [rows, ...] each, few bytes a row."""

    def of(self, columns: Callable[[str], Tensor]) -> Tensor:
        """Return the column. Args: columns: returns a column below this one by name."""
        return self.rule(*map(columns, self.needs), *self.numbers)


Layer: TypeAlias = DataProto | Derived


def names_of(layer: Layer) -> set[str]:
    """Return the names of a layer's columns."""
    if isinstance(layer, Derived):
        return {layer.key}
    return {*tensor_names(layer), *layer.non_tensor_batch}


def tensor_names(batch: DataProto) -> list[str]:
    """Return the names of a batch's tensors."""
    return [] if batch.batch is None else [str(key) for key in batch.batch.keys()]  # noqa: SIM118


def needed(layers: Sequence[Layer], wanted: set[str]) -> tuple[tuple[Layer, ...], set[str]]:
    """Return the layers that make the columns `wanted`, and the columns below that they need."""
    kept: list[Layer] = []
    below = set(wanted)
    for layer in reversed(layers):
        found = below & names_of(layer)
        if not found:
            continue
        below -= found
        if isinstance(layer, Derived):
            below |= set(layer.needs)
            kept.append(layer)
        else:
            kept.append(only(layer, found))
    return tuple(reversed(kept)), below


def cut(layers: Sequence[Layer], rows: slice | np.ndarray) -> tuple[Layer, ...]:
    """Return the same layers over some of their rows. Args: rows: numbers of rows, or a slice."""
    chosen = torch.from_numpy(rows) if isinstance(rows, np.ndarray) else rows
    mine: list[Layer] = []
    for layer in layers:
        if isinstance(layer, Derived):
            # A view would be sent with all rows behind it.
            own = tuple(one[chosen].clone() for one in layer.numbers)
            mine.append(replace(layer, numbers=own))
        else:
            mine.append(layer[rows])
    return tuple(mine)


def put_over(rows: DataProto, layers: Sequence[Layer]) -> DataProto:
    """Return rows with the columns of all layers."""
    for layer in layers:
        if isinstance(layer, Derived):
            layer = DataProto.from_dict({layer.key: layer.of(rows.tensor)})
        rows = side_by_side([rows, layer], rows.meta_info)
    return rows


def only(batch: DataProto, keys: set[str]) -> DataProto:
    """Return some columns of a batch, tensors and objects."""
    return batch.select(
        [key for key in tensor_names(batch) if key in keys],
        [key for key in batch.non_tensor_batch if key in keys],
    )


def side_by_side(pieces: Sequence[DataProto], meta_info: Mapping[str, object]) -> DataProto:
    """Join the columns of pieces with the same rows, of equal names the last; empty pieces are left
    out."""
    tensors: dict[str, Tensor] = {}
    arrays: dict[str, np.ndarray] = {}
    for piece in pieces:
        arrays |= piece.non_tensor_batch
        tensors |= (
            {} if piece.batch is None else {str(key): tensor for key, tensor in piece.batch.items()}
        )
    num_rows = next((len(piece) for piece in pieces if names_of(piece)), 0)
    batch = TensorDict(tensors, batch_size=[num_rows]) if tensors else None
    meta: MetaInfo = dict(meta_info)
    return DataProto(batch, arrays, meta)
