"""Batches whose every column tells the row it came from, so that a test can see rows that went
astray."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st

from rl_core.data_proto import DataProto
from rl_core.data_proto.compare import same

property_test = settings(deadline=None, max_examples=40, derandomize=True, database=None)
"""The same cases every time, and none kept on disk."""


@dataclass(eq=False)
class Labelled(DataProto):
    """A subclass with a field of its own."""

    label: str = "none"


def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def lengths_of(numbers: list[int]) -> list[int]:
    return [number % 4 for number in numbers]


def rows(num_rows: int = 6, start: int = 0, *, cls: type[DataProto] = DataProto) -> Any:
    """Row i holds i in a dense, a half-precision and a jagged tensor, as an integer, a text and a
    dict of a tensor."""
    return holding(list(range(start, start + num_rows)), cls=cls)


def holding(numbers: list[int], *, cls: type[DataProto] = DataProto) -> Any:
    """The rows with these numbers."""
    values = torch.tensor(numbers, dtype=torch.long)
    flat = values.repeat_interleave(torch.tensor(lengths_of(numbers), dtype=torch.long))
    offsets = torch.tensor([0, *np.cumsum(lengths_of(numbers), dtype=np.int64).tolist()])
    tensors = {
        "pair": torch.stack([values, 10 * values], 1),
        "half": values.bfloat16(),
        "ragged": torch.nested.nested_tensor_from_jagged(flat, offsets),
        "ragged_float": torch.nested.nested_tensor_from_jagged(
            flat[:, None].repeat(1, 2).float(), offsets
        ),
    }
    media = np.empty(len(numbers), dtype=object)
    for row, number in enumerate(numbers):
        media[row] = {"pixels": torch.full((2, 2), float(number))}
    columns = {
        "text": np.array([f"row {number}" for number in numbers], dtype=object),
        "number": np.array(numbers, dtype=np.int32),
        "media": media,
    }
    return cls.from_dict(tensors, columns, {"step": 3, "nested": {"list": [1, 2]}})


def numbers_of(proto: DataProto) -> list[int]:
    """The numbers of the rows, after checking that every column has them, in its own dtype."""
    numbers = proto.tensor("pair")[:, 0].tolist()
    expected = holding(numbers)
    assert proto.batch is not None
    assert proto.batch.batch_size == expected.batch.batch_size
    for key, value in expected.batch.items():
        assert same(proto.batch[key], value), key
    for key, column in expected.non_tensor_batch.items():
        assert same(proto.non_tensor_batch[key], column), key
    ragged, ragged_float = proto.tensor("ragged"), proto.tensor("ragged_float")
    # Only columns that share their offsets can be added.
    assert (ragged[..., None] + ragged_float).is_nested if numbers else True
    return numbers


def identical(one: DataProto, two: DataProto) -> bool:
    """Same class, same values in all three parts."""
    return type(one) is type(two) and all(
        same(a, b)
        for a, b in (
            (one.batch, two.batch),
            (one.non_tensor_batch, two.non_tensor_batch),
            (one.meta_info, two.meta_info),
        )
    )


NUMBERS = st.lists(st.integers(0, 50), max_size=12)
"""Row numbers of an arbitrary batch, also of none."""

SOME_NUMBERS = st.lists(st.integers(0, 50), min_size=1, max_size=12)


@st.composite
def batch_and_index(draw: st.DrawFn) -> tuple[list[int], Any, list[int]]:
    """Row numbers, an index of some kind, and the numbers it chooses."""
    numbers = draw(SOME_NUMBERS)
    count = len(numbers)
    kind = draw(
        st.sampled_from(
            ["list", "array", "tensor", "mask list", "mask array", "mask tensor", "slice", "range"]
        )
    )
    if kind.startswith("mask"):
        mask = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        index: Any = {
            "mask list": mask,
            "mask array": np.array(mask),
            "mask tensor": torch.tensor(mask),
        }[kind]
        return (
            numbers,
            index,
            [number for number, chosen in zip(numbers, mask, strict=True) if chosen],
        )
    if kind == "slice":
        index = draw(st.slices(count))
        return numbers, index, numbers[index]
    if kind == "range":
        index = range(draw(st.integers(0, count)))
        return numbers, index, numbers[: len(index)]
    positions = draw(st.lists(st.integers(-count, count - 1), max_size=15))
    made = {
        "list": positions,
        "array": np.array(positions, dtype=np.int32),
        "tensor": torch.tensor(positions, dtype=torch.int16),
    }
    return numbers, made[kind], [numbers[position] for position in positions]
