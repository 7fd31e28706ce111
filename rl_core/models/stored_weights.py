"""A trained policy as the weights that are stored: adapters merged, rounded once to the format of the base.

In float32 nothing is rounded. In a coarser format the policy that was trained computes with more than is stored: its
adapters stand in float32 beside the base. What is stored is the sum, rounded once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.errors import ExportMismatch
from rl_core.train.checksums import NUM_NAMED, Checksum, checksum
from rl_core.train.lora import base_name, is_adapter
from rl_core.train.merging import adapted_weights, untie, unties

WIDTHS = (2, 4)
"""Bytes of the numbers that a checksum is taken of."""


@torch.no_grad()
def round_to_stored(policy: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Let a float32 policy, adapters and all, say what its stored weights will say, in place.

    Adapters are not merged: the base beside one becomes what is left of the rounded sum without it, so that the policy
    still computes as it was trained. Matrices that merging unties are untied first.
    Returns: the sums as they are to be stored, by the name of the base's weight.
    """
    adapted = adapted_weights(policy)
    if unties(policy, adapted):
        untie(policy)
        adapted = adapted_weights(policy)
    tensors = dict(policy.named_parameters())
    merged = {}
    for name, parameter in tensors.items():
        if is_adapter(name):
            continue
        kept = stored_dtype(policy, name, dtype)
        if name in adapted:
            delta = adapted[name].delta(lambda factor: tensors[factor].detach())
            merged[name] = (parameter + delta).to(kept)
            if kept is not torch.float32:
                parameter.copy_(merged[name].float() - delta)
        else:
            parameter.copy_(parameter.to(kept))
    return merged


@torch.no_grad()
def take_stored(policy: Any, merged: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Put what `round_to_stored` gave into the base and take the adapters off, in place."""
    for name, value in merged.items():
        policy.get_parameter(name).data = value
    if merged:
        policy.model = policy.model.unload()
    saved = policy.state_dict().keys()
    for name, value in [*policy.named_parameters(), *policy.named_buffers()]:
        if name in saved and value.is_floating_point():
            value.data = value.data.to(stored_dtype(policy, name, dtype))


def stored_dtype(policy: nn.Module, name: str, dtype: torch.dtype) -> torch.dtype:
    """The format of one tensor: `dtype`, but for what transformers keeps in float32 whatever the rest is in."""
    always: set[str] = set()
    for module in policy.modules():
        always |= set(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
    plain = base_name(name)
    kept = any(re.search(pattern.replace("*", ".*"), plain) for pattern in always)
    return torch.float32 if kept else dtype


@dataclass(frozen=True)
class Saved:
    """A tensor as it was handed to be saved."""

    dtype: torch.dtype
    checksum: Checksum


def saved_tensors(model: nn.Module) -> dict[str, Saved]:
    """Everything that a model saves in numbers of two or four bytes, by name."""
    return {
        name: Saved(value.dtype, checksum(value))
        for name, value in model.state_dict().items()
        if value.is_floating_point() and value.element_size() in WIDTHS
    }


def check_read_back(expected: dict[str, Saved], model: nn.Module, where: str) -> None:
    """Raises: ExportMismatch naming the tensors of a model read back that are not those that were to be saved."""
    found = model.state_dict()
    # What is read may stand in a wider format than it was saved in; back in that it is the same, bit for bit.
    bad = [
        name
        for name, saved in expected.items()
        if name not in found or checksum(found[name].to(saved.dtype)) != saved.checksum
    ]
    if bad:
        raise ExportMismatch(
            f"{where}: {len(bad)} of {len(expected)} tensors were not read back as they were to be written, first "
            f"{', '.join(bad[:NUM_NAMED])}. Nothing was registered"
        )
