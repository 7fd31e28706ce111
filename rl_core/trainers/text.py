"""The wiring for language models: one track of tokens; in each process that trains, all components side by side."""

from __future__ import annotations

from typing import Any, ClassVar

from rl_core.algorithms.base import StageAlgorithm
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, Remote, remote
from rl_core.distributed.vllm_engine import VllmEngine
from rl_core.envs.registration import portable_options
from rl_core.models.bundle import ModelBundle, TextBundle
from rl_core.rewards.resolve import resolve_scorers
from rl_core.rollout.dedicated import DedicatedTextEngine
from rl_core.rollout.engine import RolloutEngine
from rl_core.train.critic import CriticBundle, CriticStack
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.stacks.token_stack import TrainStack
from rl_core.trainers.base import Critic, Track
from rl_core.trainers.drift import delta_limit
from rl_core.trainers.one_track import OneTrackTrainer
from rl_core.trainers.rewards import add_scores
from rl_core.trainers.wiring import stack_options, wire_algorithm, wire_backend
from schemas.rollout import EngineKind


class TextTrainer(OneTrackTrainer):
    """RL on a causal language model with its environments."""

    track: ClassVar = "text"
    engine_class = RolloutEngine
    own_engines: ClassVar = {EngineKind.DEDICATED: DedicatedTextEngine, EngineKind.VLLM: VllmEngine}
    bundle_class: ClassVar[type[ModelBundle]] = TextBundle

    @property
    def temperature(self) -> float:
        """Of the distribution whose log-probabilities are trained: the one that was sampled."""
        return self.recipe.rollout.temperature

    def keeps_reference(self, algorithm: Any) -> bool:
        """Whether the workers need the model before training."""
        return algorithm.needs_reference

    def training_side(self, backend: Remote | None = None) -> StageAlgorithm:
        """Model, backend, algorithm and stack, and a critic where the algorithm has one."""
        recipe = self.recipe
        driver_algorithm, algorithm = wire_algorithm(recipe)
        if backend is None:
            bundle = remote(self.bundle_class, self.source_model, recipe.model)
            with_reference = self.keeps_reference(driver_algorithm)
            backend = wire_backend(recipe, bundle, self.total_steps, with_reference=with_reference)
        self.backend = backend
        stack = remote(
            TrainStack,
            self.backend,
            algorithm,
            max_tokens_per_micro_batch=recipe.placement.max_tokens_per_micro_batch,
            share_prompts=recipe.placement.share_prompts,
            temperature=self.temperature,
            max_length=recipe.rollout.max_new_tokens,
            **stack_options(recipe),
        )
        critic = self._critic(algorithm) if driver_algorithm.needs_critic else None
        limit = delta_limit(recipe)
        self.tracks = {self.track: Track(driver_algorithm, stack, algorithm, critic, max_delta_log_prob=limit)}
        return driver_algorithm

    def _critic(self, algorithm: Remote) -> Critic:
        """The value model, beside the policy in the same processes."""
        recipe, model = self.recipe, self.recipe.value_model
        text_alone = self.bundle_class is TextBundle
        backend = remote(
            FSDPBackend,
            remote(CriticBundle, self.source_model, recipe.model, text_alone=text_alone),
            recipe.fsdp,
            model.optimizer,
            model.scheduler,
            model.lora,
            total_steps=self.total_steps * recipe.updates_per_step,
            seed=recipe.seed,
            with_reference=False,
        )
        stack = remote(
            CriticStack,
            backend,
            algorithm,
            max_tokens_per_micro_batch=recipe.placement.max_tokens_per_micro_batch,
            share_prompts=recipe.placement.share_prompts,
            **stack_options(recipe) | {"max_grad_norm": model.max_grad_norm},
        )
        return Critic(stack, backend)

    def engine_options(self) -> tuple[Any, ...]:
        """Of `RolloutEngine`."""
        recipe = self.recipe
        return recipe.rollout, portable_options(recipe.environments), recipe.model.chat_template_kwargs, recipe.seed

    def notes(self) -> list[str]:
        """What is computed otherwise than usual, and a limit of the engine that is the model's."""
        return [*super().notes(), *self.engine.notes()]

    def add_rewards(self, rollout: DataProtoRef) -> dict[str, float]:
        """The environment's rewards, and with them those of the recipe's scorers."""
        recipe = self.recipe
        weights = {key: config.weight for key, _, config in resolve_scorers(recipe.rewards)}
        limit = recipe.rollout.max_new_tokens
        return add_scores(rollout, self.reward_service, weights, recipe.reward_service, limit)

    def play_held_out(self, prompts: DataProto, max_new_tokens: int) -> DataProtoRef:
        """Greedy replies."""
        version = self.up_to_date(evaluation=True)
        return self.engine.evaluate(prompts, max_new_tokens, version)
