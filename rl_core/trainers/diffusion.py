"""The wiring for diffusion models: one track of denoising steps; all components share a process per device."""

from __future__ import annotations

from typing import Any, ClassVar

from rl_core.algorithms import algorithms
from rl_core.algorithms.base import StageAlgorithm
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, Remote, remote
from rl_core.models.diffusion.bundle import DiffusionBundle
from rl_core.rewards.resolve import resolve_scorers
from rl_core.rollout.dedicated import DedicatedDiffusionEngine
from rl_core.rollout.diffusion.engine import DiffusionEngine
from rl_core.train.stacks.diffusion_stack import StepStack
from rl_core.train.stacks.nft_stack import NftStack
from rl_core.trainers.base import Track
from rl_core.trainers.one_track import OneTrackTrainer
from rl_core.trainers.rewards import add_scores, score_column
from rl_core.trainers.wiring import stack_options, wire_algorithm, wire_backend
from schemas.rollout import EngineKind

TRACK = "images"
"""Name of the one track, also where samples are videos."""


class DiffusionTrainer(OneTrackTrainer):
    """RL on a flow-matching model with the recipe's scorers."""

    track: ClassVar = TRACK
    engine_class: type[DiffusionEngine] = DiffusionEngine
    own_engines: ClassVar = {EngineKind.DEDICATED: DedicatedDiffusionEngine}

    @property
    def held_out_scores(self) -> tuple[str, ...]:
        """What each scorer said, those that are only measured (`weight: 0`) among them."""
        return tuple(self._weights)

    @property
    def _weights(self) -> dict[str, float]:
        return {key: config.weight for key, _, config in resolve_scorers(self.recipe.rewards)}

    def wire(self, backend: Remote | None = None) -> None:
        """All components, in the block that is open; samples are worth nothing without scorers."""
        super().wire(backend)
        self.wire_scorers()

    def engine_options(self) -> tuple[Any, ...]:
        """Of `DiffusionEngine`."""
        recipe = self.recipe
        _, settings = algorithms.resolve(recipe.algorithm, "algorithm")
        sde = getattr(settings, "sde", None)
        return recipe.diffusion, recipe.rollout, sde, recipe.seed, recipe.evaluation.batch_size

    def training_side(self, backend: Remote | None = None) -> StageAlgorithm:
        """Model, backend, algorithm and stack."""
        recipe = self.recipe
        driver_algorithm, algorithm = wire_algorithm(recipe)
        if backend is None:
            bundle = remote(DiffusionBundle, self.source_model, recipe.model)
            with_reference = driver_algorithm.needs_reference
            backend = wire_backend(recipe, bundle, self.total_steps, with_reference=with_reference)
        self.backend = backend
        sde, options = getattr(driver_algorithm.config, "sde", None), stack_options(recipe)
        if sde is None:
            stack = remote(NftStack, self.backend, algorithm, recipe.diffusion, **options)
        else:
            stack = remote(StepStack, self.backend, algorithm, recipe.diffusion, sde, **options)
        self.tracks = {self.track: Track(driver_algorithm, stack, algorithm)}
        return driver_algorithm

    def add_rewards(self, rollout: DataProtoRef) -> dict[str, float]:
        """What the scorers say of the samples."""
        steps = rollout.tensor("response_mask").shape[1]
        return add_scores(rollout, self.reward_service, self._weights, self.recipe.reward_service, steps)

    def play_held_out(self, prompts: DataProto, max_new_tokens: int) -> DataProtoRef:
        """One sample per prompt from the same noise every time, scored; the scorers' words by their keys."""
        played = self.engine.evaluate(prompts, self.up_to_date(evaluation=True))
        self.add_rewards(played)
        scores = {key: played.tensor(score_column(key)) for key in self._weights}
        return played.replace(DataProto.from_dict(scores))

    def describe(self, rollout: DataProtoRef) -> dict[str, float]:
        """The rewards of a rollout, over the rows that have a verdict."""
        rewards_B = rollout.tensor("rewards")[~rollout.tensor("failed")]
        return {"reward_mean": float(rewards_B.mean()), "reward_std": float(rewards_B.std(correction=0))}
