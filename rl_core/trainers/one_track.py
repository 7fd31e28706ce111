"""What trainers of one track share: where its engine lives, and that it samples with the weights it is asked for."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from rl_core.algorithms.base import StageAlgorithm
from rl_core.distributed import Remote, placement, remote
from rl_core.distributed.weight_sync import WeightSync
from rl_core.rank_info import TrainTopology
from rl_core.rewards.service import RewardService
from rl_core.train.wire import WeightVersion
from rl_core.trainers.base import Trainer
from schemas.rollout import EngineKind, SyncMode


class OneTrackTrainer(Trainer):
    """A policy, its stack, and an engine beside them or on devices of its own."""

    engine_class: type[Any]
    """What samples a sibling's policy."""
    dedicated_class: ClassVar[type[Any]]
    """What samples a policy of its own; takes the options of `engine_class`."""
    backend: Remote
    sync: Remote | None = None
    reward_service: Remote | None = None

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
                    self.training_side()
                    self.sync = remote(
                        WeightSync, backend=self.backend, rollout=self.engine, config=recipe.rollout.sync
                    )
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

    def _dedicated_engine(self) -> Remote:
        recipe = self.recipe
        mode = recipe.rollout.sync.mode_for(has_adapters=recipe.lora is not None)
        adapters = recipe.lora if mode is SyncMode.ADAPTER else None
        model = self.source_model, recipe.model, adapters, recipe.fsdp.param_dtype
        return remote(self.dedicated_class, *model, *self.engine_options())

    def sync_weights(self) -> None:
        """Send a dedicated engine the weights that rollouts use, unless it holds them."""
        self.up_to_date(evaluation=False)

    def up_to_date(self, *, evaluation: bool) -> WeightVersion | None:
        """The weights that a dedicated engine holds after a sync, which sends nothing when it holds the right ones.

        The loop syncs after each step; this covers the first rollout, a loaded checkpoint, and averages on loan.
        """
        return None if self.sync is None else self.sync.sync(evaluation=evaluation).version

    def backends(self) -> dict[str, Remote]:
        """The one trained model."""
        return {"policy": self.backend}
