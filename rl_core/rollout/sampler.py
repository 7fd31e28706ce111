"""Samplers of the policy's replies in a rollout: many requests at once, or one by one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from rl_core.kernels import Packed
from rl_core.models.decoding.continuous.arrivals import Answers, LocalAnswers
from rl_core.models.decoding.continuous.renewal import Renewal
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Reply, Request, Sampling
from rl_core.models.decoding.stop_strings import TextOf
from rl_core.models.policy import TokenPolicy


class Generate(Protocol):
    """Answers requests, group by group."""

    def __call__(self, requests: list[Request], enough: int | None = None, /) -> list[Reply]:
        """Return the replies in order. Args: enough: as of `decode`."""
        ...


class Sampler(Generate, Protocol):
    """Answers requests together, or one by one."""

    def answers(self) -> Answers:
        """Return replies that requests join as they come."""
        ...


@dataclass(frozen=True)
class LocalSampler:
    """Samples with a policy in this process, which is ready to decode; fields as of `decode`."""

    policy: TokenPolicy
    sampling: Sampling
    generator: torch.Generator
    device: torch.device
    packed: Packed
    text_of: TextOf
    graphs: bool = True
    renewal: Renewal | None = None

    def __call__(self, requests: list[Request], enough: int | None = None, /) -> list[Reply]:
        """Return the replies in order, group by group."""
        return decode(
            self.policy,
            requests,
            self.sampling,
            self.generator,
            self.device,
            self.packed,
            graphs=self.graphs,
            text_of=self.text_of,
            enough=enough,
            renewal=self.renewal,
        )

    def answers(self) -> LocalAnswers:
        """Return replies that requests join between two tokens."""
        return LocalAnswers(self.policy, self.sampling, self.device, self.packed, self.text_of)
