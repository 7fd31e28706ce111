"""What the tests of the weight sync build beside the real components."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_core.models.export.checksums import Checksum
from rl_core.rollout.dedicated import DedicatedEngine
from rl_core.rollout.engine import RolloutEngine
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.weights.buckets import WeightVersion

NUM_ROWS, NUM_PROMPT, NUM_RESPONSE = 4, 5, 8


class Scorer:
    """Log-probabilities of fixed rows, by whoever holds a policy."""

    def __init__(self, holder: FSDPBackend | RolloutEngine) -> None:
        self.holder = holder.backend if isinstance(holder, RolloutEngine) else holder

    def log_probs(self, *, evaluation: bool = False) -> Tensor:
        """[B, T] with the weights of rollouts, or of evaluations."""
        generator = torch.Generator().manual_seed(3)
        ids = torch.randint(4, 90, (NUM_ROWS, NUM_PROMPT + NUM_RESPONSE), generator=generator)
        positions = torch.arange(ids.shape[1]).expand_as(ids)
        mask = torch.ones(NUM_ROWS, NUM_RESPONSE)
        with self.holder.gathered() if evaluation else self.holder.rollout_policy() as policy:
            return policy(ids, torch.ones_like(ids), positions, mask)[0]


class Learner:
    """Takes real optimiser steps without a rollout."""

    def __init__(self, backend: FSDPBackend) -> None:
        self.backend = backend

    def learn(self) -> dict[str, float]:
        """One step that makes token 7 likelier everywhere."""
        ids = torch.full((2, 9), 7)
        positions = torch.arange(9).expand_as(ids)
        log_probs, _ = self.backend.policy(ids, torch.ones_like(ids), positions, torch.ones(2, 6))
        self.backend.backward(-log_probs.mean(), last=True)
        return self.backend.optimizer_step(100.0)


class TamperingEngine(DedicatedEngine):
    """Changes one number of one weight by one bit before an update ends, when told to."""

    target: str | None = None

    def tamper(self, name: str | None, *, now: bool = False) -> None:
        self.target = name
        if now:
            self._flip()

    def twist(self) -> None:
        """Make the last norm give next to nothing: that takes no weight, so no checksum tells."""
        norm: Any = self.replica.policy.language_model.model.norm
        norm.eps = norm.variance_epsilon = 1e4

    def finish_sync(
        self, version: WeightVersion, expected: dict[str, Checksum], dtype: torch.dtype
    ) -> None:
        self._flip()
        super().finish_sync(version, expected, dtype)

    def _flip(self) -> None:
        if self.target is not None:
            parameter: Any = self.replica.parameters[self.target]
            parameter.data.view(torch.int16).view(-1)[11] ^= 1
