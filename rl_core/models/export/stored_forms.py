"""The names and pieces under which a checkpoint has the tensors of a model.

transformers holds some under other names than their checkpoints have, and fuses others, such as the
experts of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Piece(NamedTuple):
    """A tensor of a checkpoint."""

    name: str
    shape: tuple[int, ...]


Form: TypeAlias = "tuple[Piece, ...]"
"""Tensors of a checkpoint that lie one after the other in a tensor of a model."""


def stored_forms(model: PreTrainedModel) -> dict[str, Form]:
    """Return how a checkpoint has each tensor of a model. Missing are those whose numbers it has in
    another order, such as transposed ones."""
    kept = model.state_dict()
    named = dict(model.named_parameters())
    named |= {name: one for name, one in model.named_buffers() if name in kept}
    forms = _renamed(model, named)
    for name, tensor in named.items():
        if name not in forms and (form := _cut(model, name, tensor)):
            forms[name] = form
    return forms


def _renamed(model: PreTrainedModel, named: Mapping[str, Tensor]) -> dict[str, Form]:
    """Return the forms of tensors that are stored as they are."""
    from transformers.core_model_loading import revert_weight_conversion

    places = {one.data_ptr(): name for name, one in named.items()}
    forms: dict[str, Form] = {}
    for stored, tensor in revert_weight_conversion(model, dict(named)).items():
        name = places.get(tensor.data_ptr())
        if name is not None and tensor.shape == named[name].shape:
            forms[name] = (Piece(stored, tuple(tensor.shape)),)
    return forms


def _cut(model: PreTrainedModel, name: str, tensor: Tensor) -> Form | None:
    """Return the form of a tensor that is stored in pieces; None if one is not a part of its
    memory."""
    from transformers.core_model_loading import revert_weight_conversion

    # Numbers that say where they stand.
    dtype = torch.int32 if tensor.numel() < 2**31 else torch.int64
    places = torch.arange(tensor.numel(), dtype=dtype).view(tensor.shape)
    found = []
    for stored, piece in revert_weight_conversion(model, {name: places}).items():
        flat = piece.reshape(-1)
        start = int(flat[0])
        if not torch.equal(flat, places.view(-1)[start : start + len(flat)]):
            return None
        found.append((start, Piece(stored, tuple(piece.shape))))
    found.sort()
    form, end = list[Piece](), 0
    for start, piece in found:
        if start != end:
            return None
        form.append(piece)
        end += math.prod(piece.shape)
    return tuple(form) if end == tensor.numel() else None
