"""The wiring for language models: one track of tokens, one shared process per device."""

from __future__ import annotations

from rl_core.algorithms import algorithms
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, Remote, placement, remote
from rl_core.models.bundle import ModelBundle
from rl_core.rank_info import TrainTopology
from rl_core.rollout.engine import RolloutEngine
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.stack import TrainStack, check_multi_update
from rl_core.trainers.base import Track, Trainer


class TextTrainer(Trainer):
    """RL on a causal language model with its environments."""

    def build(self) -> None:
        """One block: model, backend, engine, algorithm and stack side by side in each worker."""
        recipe, training = self.recipe, self.recipe.training
        algorithm_cls, algorithm_config = algorithms.resolve(recipe.algorithm, "algorithm")
        driver_algorithm = algorithm_cls(algorithm_config)
        check_multi_update(driver_algorithm, training.num_updates_per_batch)
        updates = training.num_mini_batches * training.num_updates_per_batch
        topology = TrainTopology(tp_size=recipe.placement.tp_size, sp_size=recipe.placement.sp_size)
        with placement(self.pool, fraction=1.0, shared_workers=True, topology=topology) as group:
            bundle = remote(ModelBundle, self.source_model, recipe.model)
            self.backend = remote(
                FSDPBackend,
                bundle,
                recipe.fsdp,
                recipe.optimizer,
                recipe.scheduler,
                recipe.lora,
                total_steps=self.total_steps * updates,
                seed=recipe.seed,
                with_reference=driver_algorithm.needs_reference,
                ema_cfg=recipe.ema,
            )
            self.engine = remote(
                RolloutEngine,
                self.backend,
                recipe.rollout,
                recipe.environments,
                recipe.model.chat_template_kwargs,
                recipe.seed,
            )
            algorithm = remote(algorithm_cls, algorithm_config)
            stack = remote(
                TrainStack,
                self.backend,
                algorithm,
                micro_batch_size=recipe.placement.micro_batch_size,
                max_tokens_per_micro_batch=recipe.placement.max_tokens_per_micro_batch,
                num_mini_batches=training.num_mini_batches,
                num_updates_per_batch=training.num_updates_per_batch,
                max_grad_norm=training.max_grad_norm,
                temperature=recipe.rollout.temperature,
            )
        self.groups = [group]
        self.tracks = {"text": Track(driver_algorithm, stack)}

    def rollout(self, prompts: DataProto) -> dict[str, DataProtoRef]:
        """The group of replies to each prompt."""
        return {"text": self.engine.rollout(prompts, self.step_count)}

    def play_held_out(self, prompts: DataProto, max_new_tokens: int) -> DataProtoRef:
        """Greedy replies."""
        return self.engine.evaluate(prompts, max_new_tokens)

    def backends(self) -> dict[str, Remote]:
        """The one trained model."""
        return {"policy": self.backend}
