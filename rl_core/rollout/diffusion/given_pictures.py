"""Substitute of a diffusion rollout for rows that hold the picture to learn."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_core.data.prepare.items import MediaItem
from rl_core.data_proto import DataProto
from rl_core.errors import DataError
from rl_core.models.diffusion.condition_images import fitted
from rl_core.models.diffusion.levels import shift_of
from rl_core.ranks.dispatch import Collect, Dispatch, distributed
from rl_core.rollout.diffusion.engine import DiffusionEngine
from rl_core.rollout.diffusion.rows import described, noised_columns, unjudged
from rl_core.rollout.sample_ids import group_columns, groups_of
from rl_core.train.weights.buckets import WeightVersion
from schemas.rows.media_checks import MediaRole, load_image


class GivenPictures(DiffusionEngine):
    """Encodes given pictures for training; evaluations draw as a `DiffusionEngine` does."""

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def rollout(
        self, prompts: DataProto, step: int, version: WeightVersion | None = None, attempt: int = 0
    ) -> DataProto | None:
        """Return the rows to train on, one per prompt.

        Args: prompts: rows with the object column `item`. step: seeds the noise.
        Returns: `clean` [B, ...], the `sigmas` to noise it to and `noise_seeds, response_mask` [B,
        K], and the prompts and names as object columns. Raises: DataError naming a row without a
        picture that can be opened.
        """
        items = list(prompts.non_tensor_batch["item"])
        jobs = []
        for item, conditions in zip(items, self.conditions(items), strict=True):
            jobs.append(self._job(item, conditions, 0, step, ""))
        clean = {}
        for row, job in enumerate(jobs):
            if job.error is None:
                clean[row] = self._latent(job.item)
        num_steps = self.config.num_steps
        shift = shift_of(self.family, self.config, num_steps)
        num_copies = self.config.num_noised or num_steps
        columns = noised_columns(jobs, clean, num_copies, shift, self.latent_shape)
        tensors = columns | unjudged(jobs, columns["response_mask"])
        tensors["rewards"] = torch.ones(len(jobs))
        objects = group_columns(groups_of(prompts), 1)
        return DataProto.from_dict(tensors, objects | described(jobs, self.conditions.blank))

    def _latent(self, item: MediaItem) -> Tensor:
        """Return the latent of a row's picture, without a batch axis."""
        targets = []
        for one in item.get("media_refs") or []:
            if one["role"] == MediaRole.TARGET:
                targets.append(one)
        if not targets:
            raise DataError(
                f"row {item['uid']} field media_refs: no picture to learn; expected one with role "
                "'target'"
            )
        picture = fitted(load_image(targets[0]["uri"]), self.config.width, self.config.height)
        size = (self.config.height, self.config.width, 3)
        pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(size)
        with torch.no_grad():
            return self.family.latents_of(pixels.movedim(-1, 0)[None].float() / 255)[0].cpu()
