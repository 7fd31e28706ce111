"""Replacement of a loaded model's modules, and its undoing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

R = TypeVar("R")


def replace_modules(model: nn.Module, same_as: Callable[[nn.Module], nn.Module | None]) -> Replaced:
    """Replace each module for which `same_as` returns another one, under the same name."""
    replaced = Replaced()
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if (ours := same_as(child)) is not None:
                setattr(parent, name, ours)
                replaced.add(parent, name, child)
    return replaced


class Replaced:
    """Attributes that were replaced, with their original values for `undo`."""

    def __init__(self) -> None:
        self._originals: list[tuple[object, str, object]] = []

    def add(self, owner: object, name: str, original: object) -> None:
        """Record the original value of an attribute."""
        self._originals.append((owner, name, original))

    def extend(self, others: Replaced) -> None:
        """Take over the records of `others`."""
        self._originals += others._originals

    def undo(self) -> None:
        """Restore all original values."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)

    def __len__(self) -> int:
        return len(self._originals)


def asked(foreign: Callable[..., R], *args: object) -> R | None:
    """Call a foreign function with a probe, without gradients; return None if it raises.

    Any exception only means that the function is not the expected one.
    """
    try:
        with torch.no_grad():
            return foreign(*args)
    except Exception:
        return None
