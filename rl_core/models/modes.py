"""Mode in which a policy computes: as in sampling, except for the dropout that a recipe asks for.

A model's own dropout and router noise would make the trained policy differ from the one that
sampled and from the reference, in ways that no ratio corrects. They stay off unless `model.dropout`
turns them on, and then only in training passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


def learning_mode(policy: nn.Module, *, own_dropout: bool) -> None:
    """Set the mode of training passes. Args: own_dropout: apply the dropout of the model's
    config."""
    policy.train(own_dropout)
    if own_dropout:
        return
    for module in policy.modules():
        dropouts = getattr(module, "lora_dropout", None)
        if isinstance(dropouts, nn.ModuleDict) and any(
            isinstance(one, nn.Dropout) for one in dropouts.values()
        ):
            # The adapter's layer alone, not the one that it adapts.
            module.training = True
            dropouts.train()


@contextmanager
def evaluation_mode(policy: nn.Module) -> Iterator[None]:
    """Turn dropout off during the block, as in sampling."""
    modes = [(module, module.training) for module in policy.modules()]
    policy.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
