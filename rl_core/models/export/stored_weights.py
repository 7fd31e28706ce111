"""The stored weights of a trained policy: adapters merged, rounded once to the format of the base.

In float32 nothing is rounded. In a coarser format the trained policy computes with more precision
than is stored: its adapters are in float32 next to the base. The stored weight is the sum, rounded
once, and right in the mean, since most entries change by less than half a step of the format.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from rl_core.errors import ExportMismatch
from rl_core.models.adapters.dithering import dithered
from rl_core.models.adapters.lora import base_name, is_adapter
from rl_core.models.adapters.merging import adapted_weights, untie, unties
from rl_core.models.checks.comparison import Live, difference, explained
from rl_core.models.export.checksums import NUM_NAMED, Checksum, checksum
from rl_core.models.policy import Policy

WIDTHS = (2, 4)
"""Sizes in bytes of the number formats that have a checksum."""


@dataclass(frozen=True)
class Saved:
    """A tensor as passed to be saved."""

    dtype: torch.dtype
    checksum: Checksum


FormatOf = Callable[[str], torch.dtype]
"""Function that returns the stored format of a base model's parameter by its name."""


@dataclass(frozen=True)
class Written:
    """Written tensors, and the results expected when they are read back."""

    said_N: Tensor
    bound: float
    saved: dict[str, Saved]
    """Saved tensors; empty if adapters alone were written."""

    def check(
        self, said_N: Tensor, model: nn.Module, out: Path, places: list[str] | None = None
    ) -> None:
        """Check that a model read back from `out` has the written tensors and gives the expected
        results.

        Raises: ExportMismatch when not.
        """
        check_read_back(self.saved, model, str(out))
        if found := difference(self.said_N, said_N, self.bound, places):
            raise ExportMismatch(
                f"{out} does not say what the trained policy says: {found}. Nothing was registered"
            )


def write_stored(
    policy: Policy,
    say: Callable[[], Tensor],
    format_of: FormatOf,
    live: Live,
    write: Callable[[], nn.Module | None],
    *,
    merge: bool,
    places: list[str] | None = None,
) -> Written:
    """Compare a policy with the live one that its weights came from, and write it.

    Args: policy: in float32, with separate adapters. say: returns its results on the probe inputs.
    write: writes the policy in its final state; returns the saved model, or None for adapters
    alone. merge: merge the adapters first.
    Raises: ExportMismatch when it differs from the live one.
    """
    said_N = say()
    if found := difference(live.said_N, said_N, explained(said_N, say, policy, live.dtype), places):
        raise ExportMismatch(
            f"the weights taken from the trained policy are not what it computes with: {found}"
        )
    merged: dict[str, Tensor] = {}
    if merge:
        merged = round_to_stored(policy, format_of)
        said_N = say()
    bound = explained(said_N, say, policy, torch.float32)
    if merge:
        take_stored(policy, merged, format_of)
    model = write()
    return Written(said_N, bound, {} if model is None else saved_tensors(model))


@torch.no_grad()
def round_to_stored(policy: Policy, format_of: FormatOf) -> dict[str, Tensor]:
    """Change a float32 policy, in place, so that it gives the results of its stored weights.

    Adapters are not merged: the base next to one becomes the rounded sum minus the adapter, so that
    the policy still computes as it was trained. Matrices that merging unties are untied first.
    Returns: the sums to be stored, by the name of the base's weight.
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
        kept = format_of(base_name(name))
        if name in adapted:
            delta = adapted[name].delta(lambda factor: tensors[factor].detach())
            merged[name] = dithered(parameter + delta, kept, base_name(name))
            if kept is not torch.float32:
                parameter.copy_(merged[name].float() - delta)
        else:
            parameter.copy_(parameter.to(kept))
    for name, buffer in _saved_buffers(policy):
        buffer.copy_(buffer.to(format_of(base_name(name))))
    return merged


@torch.no_grad()
def take_stored(policy: Policy, merged: dict[str, Tensor], format_of: FormatOf) -> None:
    """Put the result of `round_to_stored` into the base and remove the adapters, in place."""
    for name, value in merged.items():
        policy.get_parameter(name).data = value
    if merged:
        policy.model = policy.model.unload()
    for name, value in [*policy.named_parameters(), *_saved_buffers(policy)]:
        value.data = value.data.to(format_of(name))


def _saved_buffers(policy: nn.Module) -> list[tuple[str, Tensor]]:
    """Return floating-point buffers that are saved with a model and never trained."""
    saved = policy.state_dict().keys()
    buffers: list[tuple[str, Tensor]] = []
    for name, value in policy.named_buffers():
        if name in saved and value.is_floating_point():
            buffers.append((name, value))
    return buffers


def formats(model: nn.Module, dtype: torch.dtype) -> FormatOf:
    """Return `dtype` for everything but what transformers always keeps in float32."""
    always: set[str] = set()
    for module in model.modules():
        always |= set(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
    patterns = [pattern.replace("*", ".*") for pattern in always]
    return lambda name: torch.float32 if any(re.search(one, name) for one in patterns) else dtype


def saved_tensors(model: nn.Module) -> dict[str, Saved]:
    """Return everything that a model saves in numbers of two or four bytes, by name."""
    tensors: dict[str, Saved] = {}
    for name, value in model.state_dict().items():
        if value.is_floating_point() and value.element_size() in WIDTHS:
            tensors[name] = Saved(value.dtype, checksum(value))
    return tensors


def check_read_back(expected: dict[str, Saved], model: nn.Module, where: str) -> None:
    """Compare a model that was read back with the tensors that were to be saved.

    Raises: ExportMismatch naming the tensors that differ.
    """
    found = model.state_dict()
    # What is read may stand in a wider format than it was saved in; back in that it is the same,
    # bit for bit.
    bad = []
    for name, saved in expected.items():
        if name not in found or checksum(found[name].to(saved.dtype)) != saved.checksum:
            bad.append(name)
    if bad:
        raise ExportMismatch(
            f"{where}: {len(bad)} of {len(expected)} tensors were not read back as they were to "
            f"be written, first {', '.join(bad[:NUM_NAMED])}. Nothing was registered"
        )
