"""Moving average of the trained weights, and its temporary use in an evaluation.

shadow_n+1 = d_n shadow_n + (1 - d_n) weights, after every optimizer step that was taken. Each rank
averages its own shards, so nothing is sent. The shadow is float32 whatever the master weights are:
a decay of 0.999 is lost in bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from rl_core.errors import RLTrainError
from schemas.sections.policy import EmaConfig, EmaWarmup


def decay_at(config: EmaConfig, num_updates: int) -> float:
    """Return the decay of the update that follows `num_updates` others."""
    if config.warmup is EmaWarmup.RATIO:
        return min(config.decay, (1 + num_updates) / (10 + num_updates))
    if config.warmup is EmaWarmup.RAMP:
        return min(config.decay, num_updates * config.ramp_step)
    return config.decay


class EmaShadow:
    """Pairs of trained tensors and their averages, by the trained tensor's name.

    Args: live: parameters as they are sharded. shadow: their averages, laid out alike (bare
    tensors, a second adapter's or a mirror's parameters); unset copies `live`.
    """

    def __init__(
        self,
        config: EmaConfig,
        live: Mapping[str, Tensor],
        shadow: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.config, self.live = config, live
        self.shadow: Mapping[str, Tensor] = (
            {name: live[name].detach().float().clone() for name in live}
            if shadow is None
            else shadow
        )
        self.num_updates = 0
        self._lent: dict[str, Tensor] | None = None

    def state(self) -> dict[str, Tensor]:
        """Return the averages themselves, to be saved or loaded."""
        return {name: shadow.detach() for name, shadow in self.shadow.items()}

    def full(self) -> dict[str, Tensor]:
        """Return the averages, whole on the CPU of rank 0 (empty elsewhere), by the name of the
        trained tensor. Collective."""
        full: dict[str, Tensor] = {}
        for name, shadow in self.shadow.items():
            value = shadow.detach()
            value = value.full_tensor() if isinstance(value, DTensor) else value
            if dist.get_rank() == 0:
                full[name] = value.cpu()
        return full

    @property
    def applied(self) -> bool:
        """True while the averages replace the weights."""
        return self._lent is not None

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the weights, after an optimizer step."""
        self.check_not_applied("take an optimiser step")
        weight = 1.0 - decay_at(self.config, self.num_updates)
        for name, shadow in self.shadow.items():
            local = local_part(shadow)
            local.lerp_(local_part(self.live[name]).to(local.dtype), weight)
        self.num_updates += 1

    @torch.no_grad()
    def apply(self) -> None:
        """Put the averages in place of the weights. Raises: RLTrainError when they already are."""
        self.check_not_applied("apply the average")
        self._lent = {name: local_part(live).clone() for name, live in self.live.items()}
        for name, shadow in self.shadow.items():
            local_part(self.live[name]).copy_(local_part(shadow))

    @torch.no_grad()
    def restore(self) -> None:
        """Put the weights back, bit for bit. Raises: RLTrainError when they were not replaced."""
        if self._lent is None:
            raise RLTrainError(
                "restore_from_eval without apply_eval_ema: the weights are in place already"
            )
        for name, kept in self._lent.items():
            local_part(self.live[name]).copy_(kept)
        self._lent = None

    def check_not_applied(self, what: str) -> None:
        """Refuse an operation while the averages replace the weights.

        Raises: RLTrainError naming it.
        """
        if self.applied:
            raise RLTrainError(
                f"cannot {what} while the average stands in for the weights; restore_from_eval "
                "first"
            )


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's part of a tensor, sharing its memory."""
    local = tensor.detach()
    if isinstance(local, DTensor):
        return local.to_local()
    return local
