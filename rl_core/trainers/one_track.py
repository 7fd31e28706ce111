"""What trainers of one track share: where its engine lives, and that it samples with the weights it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rl_core.algorithms.base import StageAlgorithm
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, Remote, placement, remote
from rl_core.distributed.handles import PendingCall, submit
from rl_core.distributed.weight_sync import WeightSync
from rl_core.ranks.rank_info import TrainTopology
from rl_core.rewards.service import RewardService
from rl_core.train.weights.buckets import WeightVersion
from rl_core.trainers.base import Trainer, prompt_batch
from schemas.rollout import EngineKind, SyncConfig


@dataclass(frozen=True)
class Ahead:
    """The next step's rollout, under way while the present one trains."""

    prompts: DataProto
    version: WeightVersion
    """The weights that sample it."""
    pending: PendingCall


class OneTrackTrainer(Trainer):
    """A policy, its stack, and an engine beside them or on devices of its own."""

    track: ClassVar[str]
    """Name of the one track."""
    engine_class: type[Any]
    """What samples a sibling's policy."""
    own_engines: ClassVar[Mapping[EngineKind, type[Any]]]
    """What samples a policy of its own; takes the options of `engine_class`."""
    backend: Remote
    sync: Remote | None = None
    reward_service: Remote | None = None
    _ahead: Ahead | None = None

    @abstractmethod
    def training_side(self, backend: Remote | None = None) -> StageAlgorithm:
        """Model, backend, algorithm and stack, in the block that is open. Returns: the driver's algorithm.

        Args: backend: of a model that is there already; unset loads the recipe's.
        """

    @abstractmethod
    def engine_options(self) -> tuple[Any, ...]:
        """What an engine takes after its backend."""

    def build(self) -> None:
        """One block where the components that train share a process per device; beside it, that of a dedicated engine.

        The in-process engine is one of the siblings; a dedicated one is tied to the backend by a WeightSync, and its
        block has devices of its own or (vLLM) further processes on those that train.
        """
        recipe, placed = self.recipe, self.recipe.placement
        topology = TrainTopology(tp_size=placed.tp_size, sp_size=placed.sp_size)
        owns_model = recipe.rollout.engine.owns_model
        with placement(self.pool) as whole:
            shared = None
            if owns_model:
                sampling = placed.rollout_devices or placed.num_devices
                with placement(self.pool, fraction=sampling / placed.num_devices) as block:
                    self.engine = self._own_engine()
                shared = None if placed.rollout_devices else block
            training = placed.train_devices / placed.num_devices
            with placement(self.pool, fraction=training, topology=topology, beside=shared):
                if owns_model:
                    self.training_side()
                    self.sync = remote(WeightSync, backend=self.backend, rollout=self.engine, config=self._sync_config)
                else:
                    self.wire()
                self.wire_scorers()
        self.groups = [whole]

    def wire(self, backend: Remote | None = None) -> None:
        """What trains, and the engine that samples it, side by side in the block that is open.

        Args: backend: of a model that is there already; unset loads the recipe's.
        """
        self.training_side(backend)
        self.engine = remote(self.engine_class, self.backend, *self.engine_options())

    def wire_scorers(self) -> None:
        """The recipe's scorers, unless they are there."""
        if self.recipe.rewards and self.reward_service is None:
            self.reward_service = remote(RewardService, self.recipe.rewards, self.recipe.reward_service)

    def before_training(self) -> None:
        """The engine goes to sleep, or on to the next step, as the recipe says."""
        rollout = self.recipe.rollout
        if rollout.engine is EngineKind.VLLM and rollout.vllm.sleep:
            self.engine.sleep()
        if rollout.steps_ahead and (self.step_count + 1) % self.recipe.training.steps_per_iteration:
            self._ahead = self._start_ahead()

    def rollout(self, prompts: DataProto, attempt: int = 0) -> dict[str, DataProtoRef]:
        """The group of samples of each prompt."""
        version = self.up_to_date(evaluation=False)
        return {self.track: self.engine.rollout(prompts, self.step_count, version, attempt)}

    def sample(self) -> tuple[DataProto, dict[str, DataProtoRef]]:
        """The step's prompts with their samples, which may have been started a step ahead."""
        ahead, self._ahead, self.staleness = self._ahead, None, None
        if ahead is None:
            return super().sample()
        with self._phase("rollout"):
            rollout = ahead.pending.result()
        self.staleness = self.backend.weight_version().number - ahead.version.number
        return ahead.prompts, {self.track: rollout}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`; a rollout that was started ahead belongs to what was left."""
        self._ahead = None
        super().load_state_dict(state)

    def _start_ahead(self) -> Ahead:
        """The prompts after the present ones go to the engine, with the weights that there are before this training."""
        with self._phase("sync"):
            version = self.up_to_date(evaluation=False)
        assert version is not None, "an engine beside training has weights of its own"
        prompts = prompt_batch(self.source.next_batch())
        return Ahead(prompts, version, submit(self.engine.rollout, prompts, self.step_count + 1, version))

    @property
    def _sync_config(self) -> SyncConfig:
        return self.recipe.rollout.sync_for(has_adapters=self.recipe.lora is not None)

    def _own_engine(self) -> Remote:
        recipe = self.recipe
        mode = self._sync_config.mode_for(has_adapters=recipe.lora is not None)
        model = self.source_model, recipe.model, recipe.lora, mode, recipe.fsdp.param_dtype
        return remote(self.own_engines[recipe.rollout.engine], *model, *self.engine_options())

    def sync_weights(self) -> None:
        """Send a dedicated engine the weights that rollouts use, unless it holds them or is at work."""
        if self._ahead is None:
            self.up_to_date(evaluation=False)

    def up_to_date(self, *, evaluation: bool) -> WeightVersion | None:
        """The weights that a dedicated engine holds after a sync, which sends nothing when it holds the right ones.

        The loop syncs after each step; this covers the first rollout, a loaded checkpoint, and averages on loan.
        """
        return None if self.sync is None else self.sync.sync(evaluation=evaluation).version

    def backends(self) -> dict[str, Remote]:
        """The one trained model."""
        return {"policy": self.backend}
