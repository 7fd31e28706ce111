"""Replacement of a loaded model's modules by all fast ones of this package."""

from __future__ import annotations

import torch
from torch import nn

from rl_core.kernels.gated_mlp import use_gated_mlps
from rl_core.kernels.replace import Replaced
from rl_core.kernels.rms_norm import use_quick_norms

MEASURED_ON = ("cpu",)
"""Types of devices on which the fast modules were timed against the model's own."""


def accelerate(model: nn.Module, device: torch.device) -> Replaced:
    """Replace modules of a transformers model by fast ones that compute the same.

    A model that is loaded on a CPU and moves to a GPU keeps them: whole steps were measured with
    them there (`make bench-gpu`).

    Args: device: of the model; nothing is replaced if its type is not in `MEASURED_ON`. Returns:
    the replaced modules, which `undo()` puts back; empty if there are none.
    """
    replaced = Replaced()
    if device.type in MEASURED_ON:
        for replace in (use_quick_norms, use_gated_mlps):
            replaced.extend(replace(model))
    return replaced
