"""In which mode a policy computes: as it samples, always, but for what a recipe asks to be dropped out.

A model's own dropout and router noise would make what trains another policy than what rolled out and than the
reference: differences that no ratio means. They stay off unless `model.dropout` turns them on, and then for the passes
that learn alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


def learning_mode(policy: nn.Module, *, own_dropout: bool) -> None:
    """The mode of passes that learn. Args: own_dropout: let the model drop out what its config says."""
    policy.train(own_dropout)
    if own_dropout:
        return
    for module in policy.modules():
        dropouts: Any = getattr(module, "lora_dropout", None)
        if isinstance(dropouts, nn.ModuleDict) and any(isinstance(one, nn.Dropout) for one in dropouts.values()):
            # The adapter's layer alone, not the one that it adapts.
            module.training = True
            dropouts.train()


@contextmanager
def evaluation_mode(policy: nn.Module) -> Iterator[None]:
    """For the block nothing is dropped out, as in sampling."""
    modes = [(module, module.training) for module in policy.modules()]
    policy.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
