"""Modules of a loaded model that give way to ones that compute the same quicker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def replace_modules(model: nn.Module, same_as: Callable[[nn.Module], nn.Module | None]) -> Replaced:
    """Put what `same_as` makes of a module in its place, under its name; None leaves it."""
    replaced = Replaced()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (ours := same_as(child)) is not None:
                setattr(parent, name, ours)
                replaced.add(parent, name, child)
    return replaced


class Replaced:
    """What gave way, to be put back if the whole turns out to compute something else."""

    def __init__(self) -> None:
        self._originals: list[tuple[Any, str, Any]] = []

    def add(self, owner: Any, name: str, original: Any) -> None:
        """Remember what an attribute was."""
        self._originals.append((owner, name, original))

    def extend(self, others: Replaced) -> None:
        """Remember what gave way elsewhere, too."""
        self._originals += others._originals

    def undo(self) -> None:
        """Put everything back."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)

    def __len__(self) -> int:
        return len(self._originals)


def asked(foreign: Callable[..., Any], *args: Any) -> Any:
    """What somebody else's function answers to a probe, without gradients; None where it raises.

    It may raise anything, which only says that it is not the function it was taken for.
    """
    try:
        with torch.no_grad():
            return foreign(*args)
    except Exception:
        return None
