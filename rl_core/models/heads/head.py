"""Logits of a language model from its last hidden states, as its own forward computes them.

Families differ in what they do around `lm_head`: Granite divides the logits, Cohere multiplies
them, Gemma 2 caps them (tanh), some normalise the states first. None of that is implemented again
here. The model's own forward runs with its backbone replaced by one that returns the given states.
If that turns out to be the projection times a constant, as for most families, the projection alone
is computed.

Axes: N positions, H hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rl_core.errors import ModelError
from rl_core.models.backbone import backbone_name, backbone_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ALIKE = 1e-5
"""Relative tolerance of two ways of computing logits in float32, as a share of the largest
logit."""
NUM_PROBES = 8
SIZES = (1.0, 30.0)
"""Scales of the probe states: a cap only shows on large logits."""


def own_logits(model: PreTrainedModel, hidden_NH: Tensor) -> Tensor:
    """Return logits [N, V] of a transformers model with a language modelling head, by its own
    forward.

    Raises: ModelError when its forward needs more of the backbone than hidden states.
    """
    placeholder = torch.zeros(1, len(hidden_NH), dtype=torch.long, device=hidden_NH.device)
    with _answering(model, hidden_NH[None]):
        try:
            return model(input_ids=placeholder, use_cache=False).logits[0]
        except (AttributeError, TypeError, KeyError) as error:
            raise ModelError(
                f"{type(model).__name__}: its logits cannot be computed from hidden states alone "
                f"({error})"
            ) from error


def projection_scale(model: PreTrainedModel) -> float | None:
    """Return the constant factor of the model's projection; None if its logits are computed
    otherwise.

    The projection is the module `get_output_embeddings()`.
    """
    projection = model.get_output_embeddings()
    weight = getattr(projection, "weight", None)
    if not isinstance(projection, nn.Module) or not isinstance(weight, Tensor):
        return None
    generator = torch.Generator().manual_seed(0)
    states_NH = torch.randn(NUM_PROBES, weight.shape[-1], generator=generator).to(weight)
    scale: float | None = None
    with torch.no_grad():
        for size in SIZES:
            try:
                theirs_NV, ours_NV = (
                    own_logits(model, size * states_NH),
                    projection(size * states_NH),
                )
            except (
                Exception
            ):  # a foreign forward may raise anything, which says that it is not this one
                return None
            if theirs_NV.shape != ours_NV.shape:
                return None
            theirs, ours = theirs_NV.double(), ours_NV.double()
            if scale is None:
                scale = float((theirs * ours).sum() / (ours * ours).sum().clamp_min(1e-300))
                # A constant in a config is rarely more precise than this, a quotient of sums is not
                # exact.
                scale = 1.0 if abs(scale - 1) < ALIKE else scale
            difference = (theirs - scale * ours).abs().max()
            if not bool(difference <= ALIKE * theirs.abs().max()):
                return None
    if scale is not None and scale > 0:
        return scale
    return None


class _Backbone(nn.Module):
    """Substitute of a backbone that returns given states and delegates everything else to the real
    one."""

    def __init__(self, real: nn.Module, hidden_BNH: Tensor) -> None:
        super().__init__()
        # In a list, so that it is no submodule.
        self._real, self._answer = [real], _Answer(hidden_BNH)

    def forward(self, *args: object, **kwargs: object) -> _Answer:
        return self._answer

    def __getattr__(self, name: str) -> Tensor | nn.Module:
        if name in ("_real", "_answer"):
            return super().__getattr__(name)
        found = getattr(self._real[0], name)
        # Some heads call a part of the backbone (OPT's decoder), which is the one with the blocks.
        has_blocks = isinstance(found, nn.Module) and any(
            isinstance(part, nn.ModuleList) for part in found.modules()
        )
        if has_blocks and not isinstance(found, nn.ModuleList):
            return self
        return found


class _Answer:
    """A backbone's output with hidden states only."""

    def __init__(self, hidden_BNH: Tensor) -> None:
        self.last_hidden_state = hidden_BNH

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@contextmanager
def _answering(model: PreTrainedModel, hidden_BNH: Tensor) -> Iterator[None]:
    """Make the model's backbone return these states during the block."""
    backbone, name = backbone_of(model), str(backbone_name(model))
    model._modules[name] = _Backbone(backbone, hidden_BNH)
    try:
        yield
    finally:
        model._modules[name] = backbone
