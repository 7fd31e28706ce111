"""Initial noise as a recipe instead of a tensor: every engine and every rank makes the same x_T
from a few numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Generator, Tensor


@dataclass(frozen=True)
class NoiseRecipe:
    """Numbers that determine the noise of one sample."""

    base_seed: int
    rollout: int
    """Number of the rollout in training."""
    sample_id: str
    """Id of the sample within the rollout: prompt and sibling. Siblings that share it start from
    the same noise."""

    @property
    def seed(self) -> int:
        """The 32 bits that torch's CPU generator reads, from a hash that is the same in every
        process."""
        text = f"{self.base_seed}/{self.rollout}/{self.sample_id}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big")

    def generator(self, stream: str = "") -> Generator:
        """Return a generator on the CPU; different `stream`s (such as the noise of the steps) are
        independent."""
        import torch

        if stream:
            seed = NoiseRecipe(self.base_seed, self.rollout, f"{self.sample_id}/{stream}").seed
        else:
            seed = self.seed
        return torch.Generator().manual_seed(seed)


def initial_noise(recipes: Sequence[NoiseRecipe], shape: Sequence[int]) -> Tensor:
    """Return x_T of each sample, [B, *shape] in float32 on the CPU, where a seed gives the same
    numbers for every device."""
    import torch

    return torch.stack(
        [torch.randn(tuple(shape), generator=recipe.generator()) for recipe in recipes]
    )
