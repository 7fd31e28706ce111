"""Rows of a diffusion rollout: the columns for training, and the prompts.

Shapes: B rows, K actions, latents [C, (F,) H, W]. A row that could not be sampled has zeros, and a
zero `response_mask`, so that it does not train.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl_core.data.prepare.items import MediaItem
from rl_core.models.decoding.request import StopReason
from rl_core.models.diffusion.guidance import PromptConditions
from rl_core.rollout.diffusion.denoise import Trajectory
from rl_core.sde import NoiseRecipe

TIMES = "times"
"""Name of the random stream of DiffusionNFT's noise levels."""


@dataclass(frozen=True)
class Job:
    """One sample to make."""

    item: MediaItem
    conditions: PromptConditions | str
    """Conditions of the sample, or the reason why there are none."""
    noise: NoiseRecipe
    """Recipe of the sample's own noise."""
    start: NoiseRecipe
    """Recipe of x_T: the sample's own, or that of its prompt."""

    @property
    def error(self) -> str | None:
        """Reason why the sample cannot be made, or None."""
        if isinstance(self.conditions, str):
            return self.conditions
        return None


def step_columns(
    num_rows: int,
    found: Mapping[int, Trajectory],
    levels: Tensor,
    actions: Sequence[int],
    shape: Sequence[int],
) -> dict[str, Tensor]:
    """Return the columns for a policy gradient: `latents, next_latents` [B, K, ...], `sigmas,
    next_sigmas, rollout_log_probs` and `response_mask` [B, K].

    Args: found: trajectories by row. levels: levels of the whole trajectory, [T + 1].
    """
    places, num_actions = torch.tensor(actions), len(actions)
    latents, next_latents = (torch.zeros(num_rows, num_actions, *shape) for _ in range(2))
    log_probs_BK, mask_BK = (
        torch.zeros(num_rows, num_actions),
        torch.zeros(num_rows, num_actions).long(),
    )
    for row, taken in found.items():
        latents[row], next_latents[row] = torch.cat(taken.latents), torch.cat(taken.next_latents)
        log_probs_BK[row], mask_BK[row] = torch.cat(taken.log_probs), 1
    return {
        "latents": latents,
        "next_latents": next_latents,
        "sigmas": levels[places].repeat(num_rows, 1),
        "next_sigmas": levels[places + 1].repeat(num_rows, 1),
        "rollout_log_probs": log_probs_BK,
        "response_mask": mask_BK,
    }


def noised_columns(
    jobs: Sequence[Job],
    found: Mapping[int, Tensor],
    num_copies: int,
    shift: float,
    shape: Sequence[int],
) -> dict[str, Tensor]:
    """Return the columns for training on finished samples: `clean` [B, ...], and for its noised
    copies `sigmas, noise_seeds, response_mask` [B, K].

    Each copy has a level in its own part of the schedule, so that a sample's copies cover all of
    it.

    Args: found: latents of the samples by row.
    """
    clean = torch.zeros(len(jobs), *shape)
    times, seeds, mask = [], [], torch.zeros(len(jobs), num_copies).long()
    for row, job in enumerate(jobs):
        generator = job.noise.generator(TIMES)
        times.append(
            (torch.arange(num_copies) + torch.rand(num_copies, generator=generator)) / num_copies
        )
        seeds.append(torch.randint(2**31, (num_copies,), generator=generator))
        if row in found:
            clean[row], mask[row] = found[row].cpu(), 1
    times_BK = torch.stack(times)
    return {
        "clean": clean,
        "sigmas": shift * times_BK / (1 + (shift - 1) * times_BK),
        "noise_seeds": torch.stack(seeds),
        "response_mask": mask,
    }


def unjudged(jobs: Sequence[Job], mask_BK: Tensor) -> dict[str, Tensor]:
    """Return placeholders of the scorers' rewards, and the counts that the training loop reads in
    every domain."""
    lengths_B = mask_BK.sum(1)
    return {
        "rewards": torch.zeros(len(jobs)),
        "turn_rewards": torch.zeros(mask_BK.shape),
        "failed": torch.tensor([job.error is not None for job in jobs]),
        "num_tokens": lengths_B,
        "last_reply_tokens": lengths_B,
    }


def described(
    jobs: Sequence[Job], blank: Callable[[], PromptConditions]
) -> dict[str, Sequence[object]]:
    """Return the prompt of each row, and its conditions: one object for all samples of a prompt.

    Args: blank: conditions of an empty prompt, for rows without any: a pass that only keeps the
    ranks in step needs some.
    """
    filler = blank() if any(job.error is not None for job in jobs) else None
    return {
        "uid": [job.item["uid"] for job in jobs],
        "prompt": [job.item["prompt"] for job in jobs],
        "metadata": [dict(job.item.get("metadata") or {}) for job in jobs],
        "response": ["" for _ in jobs],
        "ground_truth": [None for _ in jobs],
        "stop_reason": [
            str(StopReason.EOS if job.error is None else StopReason.FAILED) for job in jobs
        ],
        "error": [job.error for job in jobs],
        "conditions": [job.conditions if job.error is None else filler for job in jobs],
    }
