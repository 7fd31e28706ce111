"""Row operations on jagged nested tensors: one gather on the values, never a loop over rows.

A jagged column [N, j, ...] is `values [sum of lengths, ...]` and `offsets [N + 1]`. Columns that
share their offsets may be combined by arithmetic, so everything made from shared offsets in one
operation shares its offsets again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from rl_core.data_proto.errors import DataProtoError

if TYPE_CHECKING:
    from torch.nested._internal.nested_tensor import NestedTensor


def is_jagged(value: object) -> bool:
    """Return True for a nested tensor; the contract of a batch only allows the jagged layout."""
    return isinstance(value, Tensor) and value.is_nested


def check_layout(key: str, value: Tensor) -> None:
    """Check the layout of a nested tensor.

    Raises: DataProtoError when it is not jagged.
    """
    if value.is_nested and value.layout != torch.jagged:
        raise DataProtoError(
            f"{key!r} is a nested tensor of layout {value.layout}; make it with layout=torch.jagged"
        )


def parts(nested: Tensor) -> tuple[Tensor, Tensor]:
    """Return values and offsets of a column that is ragged in dimension 1 and has no holes."""
    # torch has no public name yet for the ragged dimension of a nested tensor.
    column = cast("NestedTensor", nested)
    if column._ragged_idx != 1:
        raise DataProtoError(
            f"a jagged column must be ragged in dimension 1, not {column._ragged_idx}"
        )
    if column.lengths() is not None:
        column = cast(
            "NestedTensor",
            torch.nested.as_nested_tensor(list(nested.unbind()), layout=torch.jagged),
        )
    return column.values(), column.offsets()


def join(values: Tensor, offsets: Tensor) -> Tensor:
    """Return the jagged tensor of these values and offsets."""
    return torch.nested.nested_tensor_from_jagged(values, offsets)


def offsets_of(lengths: Tensor) -> Tensor:
    """Return the [N + 1] offsets of rows with these lengths."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def gather_plan(offsets: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Return the offsets of the rows at `index`, and the positions of their values."""
    index = index.to(offsets.device)
    lengths = offsets.diff()[index]
    taken = offsets_of(lengths)
    shift = torch.repeat_interleave(offsets[:-1][index] - taken[:-1], lengths)
    return taken, torch.arange(shift.shape[0], device=offsets.device) + shift


def concatenated(
    columns: Sequence[Tensor], shared_offsets: dict[tuple[int, ...], Tensor]
) -> Tensor:
    """Return the rows of all columns, in order. `shared_offsets` holds the offsets that this
    operation has joined already."""
    split = [parts(column) for column in columns]
    key = tuple(id(offsets) for _, offsets in split)
    if key not in shared_offsets:
        shared_offsets[key] = offsets_of(torch.cat([offsets.diff() for _, offsets in split]))
    return join(torch.cat([values for values, _ in split]), shared_offsets[key])


def unfolded(key: str, nested: Tensor, num_chunks: int) -> Tensor:
    """Return each row cut into `num_chunks` equal rows. Raises: DataProtoError when a length does
    not divide."""
    values, offsets = parts(nested)
    lengths = offsets.diff()
    if bool((lengths % num_chunks).any()):
        raise DataProtoError(
            f"{key!r}: row lengths {lengths.tolist()} do not all divide by {num_chunks}"
        )
    return join(values, offsets_of(torch.repeat_interleave(lengths // num_chunks, num_chunks)))
