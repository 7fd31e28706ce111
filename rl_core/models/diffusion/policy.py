"""A flow-matching transformer as a policy: its forward gives the velocity that sampling and
training both use.

Shapes: N noisy latents [N, C, (F,) H, W], each with its level sigma_N and the condition of its
prompt.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rl_core.models.diffusion.guidance import PromptConditions, guided, has_two_halves
from rl_core.models.policy import Policy

if TYPE_CHECKING:
    from rl_core.models.diffusion.base import Condition, DiffusionFamily


@dataclass(frozen=True)
class Noisy:
    """Latents between noise and sample, with their conditions.

    FSDP rounds the tensors it finds among a forward's arguments to the compute format; it does not
    look into this class, so that the levels keep their float32.
    """

    latents: Tensor
    """Latents [N, ...], float32."""
    sigma_N: Tensor
    """Noise levels [N], float32."""
    conditions: Mapping[str, Tensor]
    """Batched conditions from `conditions_of`."""


class DiffusionPolicy(Policy):
    """The trained transformer of a pipeline, with the conventions of its family; encoders and VAE
    are not part of it.

    Args: family: calls the transformer. transformer: unset takes the family's own.
    """

    def __init__(self, family: DiffusionFamily, transformer: nn.Module | None = None) -> None:
        super().__init__()
        self.family = family
        self.model = family.transformer if transformer is None else transformer

    def __deepcopy__(self, memo: dict[int, object]) -> DiffusionPolicy:
        """Copy the transformer; the family, and with it encoders and VAE, is shared."""
        return type(self)(self.family, copy.deepcopy(self.model, memo))

    @property
    def transformer(self) -> Any:
        """The diffusers model, below any adapters."""
        # diffusers, too, leaves a `peft_config` on a transformer that it loads adapters into.
        if hasattr(self.model, "get_base_model"):
            return self.model.get_base_model()
        return self.model

    @property
    def block_classes(self) -> tuple[str, ...]:
        """Names of the classes that FSDP wraps one by one."""
        return self.family.block_classes

    @property
    def lora_targets(self) -> list[str]:
        """Linear layers that get an adapter by default."""
        return self.family.lora_targets

    def enable_activation_checkpointing(self) -> None:
        """Recompute the blocks in the backward pass."""
        self.transformer.enable_gradient_checkpointing()

    def conditions_of(
        self, prompts: Sequence[PromptConditions], copies: int, scale: float
    ) -> dict[str, Tensor]:
        """Return the conditions of `copies` latents per prompt, those of one prompt adjacent; with
        guidance, the negative half comes first. A prompt that occurs several times is batched once.
        """
        told, rows_N = self.distinct(prompts, copies, scale)
        conditions = {}
        for name, values in self.family.batch(told).items():
            conditions[name] = values[rows_N.to(values.device)]
        if self.family.embedded_guidance:
            conditions["guidance"] = torch.full((len(rows_N),), scale)
        return conditions

    def distinct(
        self, prompts: Sequence[PromptConditions], copies: int, scale: float
    ) -> tuple[list[Condition], Tensor]:
        """Return each condition once, and the index of every latent's condition, [N] or with
        guidance [2N]."""
        distinct = {id(prompt): prompt for prompt in prompts}
        places = {key: place for place, key in enumerate(distinct)}
        rows_N = torch.tensor([places[id(prompt)] for prompt in prompts for _ in range(copies)])
        told = [prompt.positive for prompt in distinct.values()]
        if has_two_halves(self.family, scale):
            told = [*(prompt.unguided for prompt in distinct.values()), *told]
            rows_N = torch.cat([rows_N, rows_N + len(distinct)])
        return told, rows_N

    def forward(self, noisy: Noisy, scale: float) -> Tensor:
        """Return the velocity eps - x_0, float32, shaped like the latents; with guidance, both
        halves in one pass.

        Args: scale: guidance scale that `noisy.conditions` were made for.
        """
        # Within the forward of an FSDP root this is the computation format, else that of the
        # weights.
        first = next(self.model.parameters())
        latents, sigma_N = (
            noisy.latents.to(first.device, first.dtype),
            noisy.sigma_N.to(first.device),
        )
        halves = has_two_halves(self.family, scale)
        if halves:
            latents, sigma_N = latents.repeat(2, *[1] * (latents.ndim - 1)), sigma_N.repeat(2)
        told = {name: _like(first, value) for name, value in noisy.conditions.items()}
        velocity = self.family.velocity(self.transformer, latents, sigma_N, told).float()
        if halves:
            return guided(self.family, velocity, scale)
        return velocity


def _like(weight: Tensor, value: Tensor) -> Tensor:
    return value.to(weight.device, weight.dtype if value.is_floating_point() else value.dtype)
