"""The wiring for language models: one track of tokens; in each process that trains, all components side by side."""

from __future__ import annotations

from typing import Any, ClassVar

from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, Remote, placement, remote
from rl_core.distributed.weight_sync import WeightSync
from rl_core.envs.registration import portable_options
from rl_core.models.bundle import ModelBundle
from rl_core.rank_info import TrainTopology
from rl_core.rewards.resolve import resolve_scorers
from rl_core.rewards.service import RewardService
from rl_core.rollout.dedicated import DedicatedEngine
from rl_core.rollout.engine import RolloutEngine
from rl_core.train.critic import CriticBundle, CriticStack
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.stack import TrainStack
from rl_core.train.wire import WeightVersion
from rl_core.trainers.base import Critic, Track, Trainer
from rl_core.trainers.rewards import add_scores
from rl_core.trainers.wiring import stack_options, updates_per_step, wire_algorithm, wire_backend
from schemas.rollout import EngineKind, SyncMode


class TextTrainer(Trainer):
    """RL on a causal language model with its environments."""

    track: ClassVar = "text"
    """Name of the one track."""
    sync: Remote | None = None
    reward_service: Remote | None = None

    @property
    def temperature(self) -> float:
        """Of the distribution whose log-probabilities are trained: the one that was sampled."""
        return self.recipe.rollout.temperature

    def keeps_reference(self, algorithm: Any) -> bool:
        """Whether the workers need the model before training."""
        return algorithm.needs_reference

    def build(self) -> None:
        """One block where the components that train share a process per device; beside it, that of a dedicated engine.

        The in-process engine is one of the siblings; a dedicated one is tied to the backend by a WeightSync.
        """
        recipe, placed = self.recipe, self.recipe.placement
        topology = TrainTopology(tp_size=placed.tp_size, sp_size=placed.sp_size)
        dedicated = recipe.rollout.engine is EngineKind.DEDICATED
        with placement(self.pool) as whole:
            if dedicated:
                with placement(self.pool, fraction=placed.rollout_devices / placed.num_devices):
                    self.engine = self._dedicated_engine()
            with placement(self.pool, fraction=placed.train_devices / placed.num_devices, topology=topology):
                if dedicated:
                    self._training_side()
                    self.sync = remote(
                        WeightSync, backend=self.backend, rollout=self.engine, config=recipe.rollout.sync
                    )
                else:
                    self.wire()
                if recipe.rewards:
                    self.reward_service = remote(RewardService, recipe.rewards, recipe.reward_service)
        self.groups = [whole]

    def wire(self, backend: Remote | None = None) -> None:
        """What trains, and the engine that samples it, side by side in the block that is open.

        Args: backend: of a model that is there already; unset loads the recipe's.
        """
        self._training_side(backend)
        self.engine = remote(RolloutEngine, self.backend, *self._engine_options())

    def _training_side(self, backend: Remote | None = None) -> None:
        """Model, backend, algorithm and stack."""
        recipe = self.recipe
        driver_algorithm, algorithm = wire_algorithm(recipe)
        if backend is None:
            bundle = remote(ModelBundle, self.source_model, recipe.model)
            with_reference = self.keeps_reference(driver_algorithm)
            backend = wire_backend(recipe, bundle, self.total_steps, with_reference=with_reference)
        self.backend = backend
        stack = remote(
            TrainStack,
            self.backend,
            algorithm,
            max_tokens_per_micro_batch=recipe.placement.max_tokens_per_micro_batch,
            temperature=self.temperature,
            max_length=recipe.rollout.max_new_tokens,
            **stack_options(recipe),
        )
        critic = self._critic(algorithm) if driver_algorithm.needs_critic else None
        self.tracks = {self.track: Track(driver_algorithm, stack, algorithm, critic)}

    def _critic(self, algorithm: Remote) -> Critic:
        """The value model, beside the policy in the same processes."""
        recipe, model = self.recipe, self.recipe.value_model
        backend = remote(
            FSDPBackend,
            remote(CriticBundle, self.source_model, recipe.model),
            recipe.fsdp,
            model.optimizer,
            model.scheduler,
            model.lora,
            total_steps=self.total_steps * updates_per_step(recipe),
            seed=recipe.seed,
            with_reference=False,
        )
        stack = remote(
            CriticStack,
            backend,
            algorithm,
            max_tokens_per_micro_batch=recipe.placement.max_tokens_per_micro_batch,
            **stack_options(recipe) | {"max_grad_norm": model.max_grad_norm},
        )
        return Critic(stack, backend)

    def _dedicated_engine(self) -> Remote:
        recipe = self.recipe
        mode = recipe.rollout.sync.mode_for(has_adapters=recipe.lora is not None)
        adapters = recipe.lora if mode is SyncMode.ADAPTER else None
        model = self.source_model, recipe.model, adapters, recipe.fsdp.param_dtype
        return remote(DedicatedEngine, *model, *self._engine_options())

    def _engine_options(self) -> tuple[Any, ...]:
        recipe = self.recipe
        return recipe.rollout, portable_options(recipe.environments), recipe.model.chat_template_kwargs, recipe.seed

    def rollout(self, prompts: DataProto, attempt: int = 0) -> dict[str, DataProtoRef]:
        """The group of replies to each prompt."""
        version = self._up_to_date(evaluation=False)
        return {self.track: self.engine.rollout(prompts, self.step_count, version, attempt)}

    def add_rewards(self, rollout: DataProtoRef) -> dict[str, float]:
        """The environment's rewards, and with them those of the recipe's scorers."""
        recipe = self.recipe
        weights = {key: config.weight for key, _, config in resolve_scorers(recipe.rewards)}
        limit = recipe.rollout.max_new_tokens
        return add_scores(rollout, self.reward_service, weights, recipe.reward_service, limit)

    def play_held_out(self, prompts: DataProto, max_new_tokens: int) -> DataProtoRef:
        """Greedy replies."""
        version = self._up_to_date(evaluation=True)
        return self.engine.evaluate(prompts, max_new_tokens, version)

    def sync_weights(self) -> None:
        """Send a dedicated engine the weights that rollouts use, unless it holds them."""
        self._up_to_date(evaluation=False)

    def _up_to_date(self, *, evaluation: bool) -> WeightVersion | None:
        """The weights that a dedicated engine holds after a sync, which sends nothing when it holds the right ones.

        The loop syncs after each step; this covers the first rollout, a loaded checkpoint, and averages on loan.
        """
        return None if self.sync is None else self.sync.sync(evaluation=evaluation).version

    def backends(self) -> dict[str, Remote]:
        """The one trained model."""
        return {"policy": self.backend}
