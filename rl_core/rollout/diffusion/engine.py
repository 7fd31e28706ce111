"""The rollout engine of diffusion models: prompts in, images or videos out, with the steps that are
trained.

Every sample has its own noise, determined by (seed, rollout, prompt, sibling), so that the layout
of ranks and batches does not change the samples. Shapes: B samples, K actions of a trajectory,
latents [C, (F,) H, W].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rl_core.data.prepare.items import MediaItem
from rl_core.data_proto import DataProto
from rl_core.models.diffusion.bundle import DiffusionBundle
from rl_core.models.diffusion.guidance import PromptConditions
from rl_core.models.diffusion.levels import noise_levels, shift_of, size_of
from rl_core.models.diffusion.policy import DiffusionPolicy, Noisy
from rl_core.ranks.dispatch import Collect, Dispatch, distributed
from rl_core.rollout.diffusion.denoise import Trajectory, denoise
from rl_core.rollout.diffusion.prompt_conditions import ConditionCache
from rl_core.rollout.diffusion.rows import Job, described, noised_columns, step_columns, unjudged
from rl_core.rollout.engine import PolicyHolder, check_version
from rl_core.rollout.sample_ids import group_columns, groups_of
from rl_core.sde import NoiseRecipe, SdeConfig, action_steps, initial_noise
from rl_core.train.weights.buckets import WeightVersion
from schemas.sections.diffusion import DiffusionConfig
from schemas.sections.rollout import RolloutConfig

STEPS = "steps"
"""Name of the random stream of a trajectory's steps."""


class DiffusionEngine:
    """Samples a diffusion policy on one rank.

    Args: sde: the kernel of the actions; None if samples, not steps, are trained (DiffusionNFT).
    """

    def __init__(
        self,
        backend: PolicyHolder[DiffusionPolicy, DiffusionBundle],
        config: DiffusionConfig,
        rollout: RolloutConfig,
        sde: SdeConfig | None,
        seed: int,
        eval_batch_size: int,
    ) -> None:
        self.backend, self.config, self.sde, self.seed = backend, config, sde, seed
        self.group_size, self.max_batch_size = rollout.samples_per_prompt, rollout.max_batch_size
        self.eval_batch_size = eval_batch_size
        self.family = backend.bundle.family
        backend.bundle.place(backend.device)
        size = size_of(config)
        self.latent_shape = self.family.latent_shape(size)
        self.conditions = ConditionCache(
            self.family, size, config.guidance_scale, config.negative_prompt
        )

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def rollout(
        self, prompts: DataProto, step: int, version: WeightVersion | None = None, attempt: int = 0
    ) -> DataProto | None:
        """Sample a group per prompt.

        Args: prompts: rows with the object column `item`. step, attempt: seed the noise, so a
        repeated step repeats it. version: the weights to sample with; unset takes the current ones.
        Returns: rows of siblings with `latents, next_latents` [B, K, ...], `sigmas, next_sigmas`
        [B, K], `rollout_log_probs, response_mask` [B, K] of the actions, or without a kernel
        `clean` [B, ...], the `sigmas` to noise it to and `noise_seeds` [B, K]; `images` or `videos`
        as whole numbers 0..255, the prompts and the names (`sample_ids`) as object columns.
        Raises: StaleEngine when the engine holds other weights.
        """
        check_version(self.backend, version, evaluation=False)
        items = list(prompts.non_tensor_batch["item"])
        jobs = []
        for item, conditions in zip(items, self.conditions(items), strict=True):
            for sibling in range(self.group_size):
                jobs.append(
                    self._job(item, conditions, sibling, step, f"{attempt}/" if attempt else "")
                )
        num_steps = self.config.num_steps
        levels = noise_levels(self.family, self.config, num_steps)
        actions = () if self.sde is None else action_steps(self.sde, num_steps, step, self.seed)
        with self.backend.rollout_policy() as policy:
            found = self.sample(policy, jobs, levels, actions, self.max_batch_size)
        if actions:
            trained = step_columns(len(jobs), found, levels, actions, self.latent_shape)
        else:
            shift = shift_of(self.family, self.config, num_steps)
            clean = {row: one.clean[0] for row, one in found.items()}
            trained = noised_columns(
                jobs, clean, self.config.num_noised or num_steps, shift, self.latent_shape
            )
        ids = group_columns(groups_of(prompts), self.group_size)
        return self._collect(jobs, ids, found, trained)

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def evaluate(
        self, prompts: DataProto, version: WeightVersion | None = None
    ) -> DataProto | None:
        """Sample each prompt once with deterministic steps, from the same noise every time; errors
        as in `rollout`."""
        check_version(self.backend, version, evaluation=True)
        jobs = self.jobs_of(list(prompts.non_tensor_batch["item"]))
        levels = noise_levels(self.family, self.config, self.config.eval_steps)
        with self.backend.gathered() as policy:
            found = self.sample(policy, jobs, levels, (), self.eval_batch_size)
        made = torch.tensor([[row in found] for row in range(len(jobs))]).long()
        ids = group_columns(groups_of(prompts), 1)
        return self._collect(jobs, ids, found, {"response_mask": made})

    def jobs_of(self, items: Sequence[MediaItem]) -> list[Job]:
        """Return one sample of each prompt for an evaluation, always from the same noise."""
        noises = [NoiseRecipe(self.seed, 0, f"evaluate/{item['uid']}") for item in items]
        rows = zip(items, self.conditions(items), noises, strict=True)
        return [Job(item, conditions, noise, start=noise) for item, conditions, noise in rows]

    def _job(
        self,
        item: MediaItem,
        conditions: PromptConditions | str,
        sibling: int,
        step: int,
        prefix: str,
    ) -> Job:
        """Return one sample of a group. Siblings that share x_T still have their own steps, or they
        would be equal."""
        name = f"{prefix}{item['uid']}"
        noise = NoiseRecipe(self.seed, step, f"{name}/{sibling}")
        return Job(
            item,
            conditions,
            noise,
            NoiseRecipe(self.seed, step, name) if self.config.share_noise else noise,
        )

    def sample(
        self,
        policy: DiffusionPolicy,
        jobs: Sequence[Job],
        levels: Tensor,
        actions: Sequence[int],
        at_once: int,
    ) -> dict[int, Trajectory]:
        """Return the trajectory of each job that has conditions, by its index, as a batch of one.

        Args: levels: levels of all steps. actions: steps that draw noise. at_once: samples per
        forward pass.
        """
        scale = self.config.guidance_scale
        good = [row for row, job in enumerate(jobs) if isinstance(job.conditions, PromptConditions)]
        found: dict[int, Trajectory] = {}
        for first in range(0, len(good), at_once):
            rows = good[first : first + at_once]
            prompts = []
            for row in rows:
                if isinstance(one := jobs[row].conditions, PromptConditions):
                    prompts.append(one)
            told = self.told(policy, prompts)
            noise = initial_noise([jobs[row].start for row in rows], self.latent_shape).to(
                self.backend.device
            )

            def velocity_of(x: Tensor, sigma_B: Tensor, told: dict[str, Tensor] = told) -> Tensor:
                return policy(Noisy(x, sigma_B, told), scale)

            generators = [jobs[row].noise.generator(STEPS) for row in rows]
            batch = denoise(
                velocity_of, noise, levels, self.sde or SdeConfig(), actions, generators
            )
            found |= zip(rows, batch.rows(), strict=True)
        return found

    def told(
        self, policy: DiffusionPolicy, prompts: Sequence[PromptConditions]
    ) -> dict[str, Tensor]:
        """Return the policy's conditions for some samples, the same at every step."""
        conditions = policy.conditions_of(prompts, 1, self.config.guidance_scale)
        return {name: value.to(self.backend.device) for name, value in conditions.items()}

    def _collect(
        self,
        jobs: Sequence[Job],
        ids: dict[str, list[str]],
        found: dict[int, Trajectory],
        trained: dict[str, Tensor],
    ) -> DataProto:
        tensors = trained | unjudged(jobs, trained["response_mask"])
        objects = ids | described(jobs, self.conditions.blank) | self._decoded(len(jobs), found)
        return DataProto.from_dict(tensors, objects)

    def _decoded(
        self, num_rows: int, found: dict[int, Trajectory]
    ) -> dict[str, list[np.ndarray | None]]:
        """Return images [height, width, 3] or videos [frames, height, width, 3] of whole numbers
        0..255."""
        made: list[np.ndarray | None] = [None] * num_rows
        rows = list(found)
        for first in range(0, len(rows), self.config.decode_batch_size):
            chosen = rows[first : first + self.config.decode_batch_size]
            with torch.no_grad():
                pixels = self.family.decode(torch.cat([found[row].clean for row in chosen]))
            if self.family.makes_video and self.config.num_frames == 1:
                pixels = pixels[:, 0]
            levels = (pixels.movedim(-3, -1) * 255).round().to(torch.uint8).cpu().numpy()
            for row, one in zip(chosen, levels, strict=True):
                made[row] = one
        return {"videos" if self.config.num_frames > 1 else "images": made}
