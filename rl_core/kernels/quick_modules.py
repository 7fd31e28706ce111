"""Modules of a loaded model that give way to ours, all kinds at once."""

from __future__ import annotations

import torch
from torch import nn

from rl_core.kernels.gated_mlp import use_gated_mlps
from rl_core.kernels.replace import Replaced
from rl_core.kernels.rms_norm import use_quick_norms

MEASURED_ON = ("cpu",)
"""Kinds of devices on which these modules were timed beside the model's own."""


def accelerate(model: nn.Module, device: torch.device) -> Replaced:
    """Replace modules of a transformers model by quick ones that compute the same.

    A model that is loaded on a CPU and moves to a GPU keeps them: whole steps were measured with
    them there (`make bench-gpu`).

    Args: device: where the model lies; nothing is replaced on a kind that is not in `MEASURED_ON`.
    Returns: what gave way, to be put back by `undo()`; empty where nothing did.
    """
    replaced = Replaced()
    if device.type in MEASURED_ON:
        for replace in (use_quick_norms, use_gated_mlps):
            replaced.extend(replace(model))
    return replaced
