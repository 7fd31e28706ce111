"""Deep comparison of values: NaN equals NaN, tensors and arrays compare as a whole, at any depth.

Also the description of values in messages: `describe`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import torch
from tensordict import TensorCollection, TensorDictBase
from torch import Tensor

from rl_core.data_proto import jagged

Pairs = frozenset[tuple[int, int]]


def same(one: object, two: object, *, tolerance: float = 0.0, _open: Pairs = frozenset()) -> bool:
    """Compare tensors, arrays, mappings, sequences, dataclasses and plain values deeply.

    Tensors and arrays must agree in dtype and shape. `tolerance` is relative and absolute, for
    Python numbers only. A structure that contains itself equals one that does so in the same place.
    """
    if one is two or (id(one), id(two)) in _open:
        return True
    inner = _open | {(id(one), id(two))}

    def within(a: object, b: object) -> bool:
        return same(a, b, tolerance=tolerance, _open=inner)

    if isinstance(one, Tensor) or isinstance(two, Tensor):
        return isinstance(one, Tensor) and isinstance(two, Tensor) and same_tensor(one, two)
    if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
        if not (isinstance(one, np.ndarray) and isinstance(two, np.ndarray)):
            return False
        if one.dtype != two.dtype or one.shape != two.shape:
            return False
        if one.dtype == object:
            return all(within(a, b) for a, b in zip(one.flat, two.flat, strict=True))
        return np.array_equal(one, two, equal_nan=one.dtype.kind in "fcmM")
    if isinstance(one, Mapping | TensorDictBase) and isinstance(two, Mapping | TensorDictBase):
        keys = set(one.keys())
        return keys == set(two.keys()) and all(within(one[key], two[key]) for key in keys)
    if isinstance(one, list | tuple) and isinstance(two, list | tuple):
        return type(one) is type(two) and len(one) == len(two) and all(map(within, one, two))
    if dataclasses.is_dataclass(one) and type(one) is type(two):
        if hasattr(one, "__dict__"):
            return within(vars(one), vars(two))
        return bool(one == two)
    return _same_plain(one, two, tolerance)


def same_tensor(one: Tensor, two: Tensor) -> bool:
    """Return True for equal dtype, shape and values, where NaN equals NaN; jagged tensors are
    compared by their rows."""
    if one.dtype != two.dtype or one.is_nested != two.is_nested:
        return False
    if one.is_nested:
        (values_one, offsets_one), (values_two, offsets_two) = jagged.parts(one), jagged.parts(two)
        return same_tensor(offsets_one, offsets_two) and same_tensor(values_one, values_two)
    if one.shape != two.shape:
        return False
    two = two.to(one.device)
    if torch.equal(one, two):
        return True
    if not (one.is_floating_point() or one.is_complex()):
        return False
    return bool(((one == two) | (one.isnan() & two.isnan())).all())


def _same_plain(one: object, two: object, tolerance: float) -> bool:
    if isinstance(one, int | float) and isinstance(two, int | float):
        if math.isnan(one) or math.isnan(two):
            return math.isnan(one) and math.isnan(two)
        return one == two or (
            tolerance > 0 and math.isclose(one, two, rel_tol=tolerance, abs_tol=tolerance)
        )
    if isinstance(one, np.generic) and isinstance(two, np.generic):
        return np.array_equal(
            one, two, equal_nan=one.dtype.kind in "fcmM" and two.dtype.kind in "fcmM"
        )
    # Tables and the like answer `==` with one truth per cell.
    return bool(np.all(one == two))


def shape_of(value: Tensor | TensorCollection | np.ndarray) -> list[int | str]:
    """Return the shape for a message; the ragged dimension of a jagged tensor is `j`."""
    return [size if isinstance(size, int) else "j" for size in value.shape]


def describe(value: object) -> str:
    """Describe a value for a message: kind and shape of large values, the value of small ones."""
    if isinstance(value, Tensor):
        return f"{shape_of(value)} {str(value.dtype).removeprefix('torch.')}"
    if isinstance(value, np.ndarray):
        return f"{value.shape} {value.dtype}"
    text = repr(value)
    if len(text) <= 80:
        return text
    return f"{text[:77]}..."
