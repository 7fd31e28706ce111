"""The training loop of every domain: rollout → reward → advantage → train → weight sync → log.

`Trainer.step` is one turn of the loop. It works on tracks (`track.Track`) and knows no domain: the
sampler, the scorer and the learner of a track are parts, which a domain puts together in
`Trainer.wire`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rl_core.algorithms.advantages import group_ids
from rl_core.data.order.curriculum import CurriculumSource
from rl_core.data.order.source_of_recipe import training_source
from rl_core.data.prepare.items import Item
from rl_core.data_proto import DataProto
from rl_core.distributed import Block, DataProtoRef, DevicePool, placement
from rl_core.rollout.sample_ids import GROUP, id_columns
from rl_core.train.critic import critic_metrics
from rl_core.trainers.advantages import add_advantages
from rl_core.trainers.handles import BackendHandle, Batch
from rl_core.trainers.length_penalty import add_greedy_rewards, shape_overlong
from rl_core.trainers.measures import add_measures
from rl_core.trainers.metrics.drift import watch_delta
from rl_core.trainers.metrics.staleness import staleness_metrics
from rl_core.trainers.own_engine import OwnEngine
from rl_core.trainers.progress import ProgressEvent, announce
from rl_core.trainers.refill import Refill
from rl_core.trainers.step_prompts import StepPrompts, drawn_at_once
from rl_core.trainers.step_record import Portion, StepRecord
from rl_core.trainers.track import Learner, Rollouts, Track, Wiring, prompt_batch, prompts_of
from rl_core.trainers.wiring import total_steps
from schemas.recipe import Recipe
from schemas.sections.sampling import EvaluationSampling


class Trainer(ABC):
    """A running training job: workers, data position and step count.

    A domain is a subclass with its `wire`.
    """

    wiring: Wiring

    def __init__(self, recipe: Recipe, source_model: str, items: Sequence[Item]) -> None:
        self.recipe = recipe
        self.source_model = source_model
        self.source_items = items
        self.source = training_source(
            items,
            drawn_at_once(recipe),
            recipe.seed,
            recipe.data.blend,
            recipe.data.curriculum,
            recipe.data_source,
        )
        self.prompts = StepPrompts(recipe, self.source)
        self.step_count = 0
        self.groups: list[Block] = []
        placement = recipe.placement
        self.pool = DevicePool(
            placement.num_devices,
            placement.devices_per_node,
            placement.workers_per_device,
            joined=recipe.joined_devices,
            device_kind=placement.device,
            threads_per_device=placement.threads_per_device,
            collective_timeout_s=placement.collective_timeout_s,
        )
        self.staleness: int | None = None
        """Weight updates since the present step was sampled; None if it was not ahead."""
        self.record = StepRecord(0)
        """The last step's prompts and batches, by reference."""
        self._seconds: dict[str, float] = {}

    @abstractmethod
    def wire(self) -> Wiring:
        """Place the workers in the open block, which has all devices, and return the wiring."""

    def build(self) -> None:
        """Start the workers."""
        with placement(self.pool) as whole:
            self.wiring = self.wire()
        self.groups = [whole]

    @property
    def tracks(self) -> dict[str, Track]:
        """Tracks by name, in the order in which they are scored and trained: leaves first."""
        return {track.name: track for track in reversed(self.wiring.tracks)}

    @property
    def total_steps(self) -> int:
        """Number of steps in the whole run."""
        return total_steps(self.recipe)

    def step(self) -> tuple[dict[str, float], DataProtoRef]:
        """Run one turn of the loop.

        Returns: the step's metrics, and the rollout of the track that was sampled first.
        """
        self._seconds = {}
        self.record = StepRecord(self.step_count + 1)
        prompts, rollouts = self._sample()
        metrics: dict[str, dict[str, float]] = {}
        batches: dict[str, Batch] = {}
        for name, track in self.tracks.items():
            metrics[name] = self._reward(track, prompts, rollouts)
            if track.learns:
                batches[name] = self._with_advantages(track, rollouts[name], metrics[name])
            else:
                self.record.tracks[name] = [Portion(rollouts[name], trained=False)]
            metrics[name] = track.describe(rollouts[name]) | metrics[name]
        self._use_engines_meanwhile()
        with self._phase("train"):
            trained = self._train(batches)
        for name, batch in batches.items():
            metrics[name] |= trained[name]
            self._adapt(self.tracks[name], batch, metrics[name])
        with self._phase("sync"):
            self.sync_weights()
        for name, track in self.tracks.items():
            metrics[name] |= track.sampler.engine.sync_metrics()
        self.step_count += 1
        self.record.seconds = dict(self._seconds)
        merged = _with_prefixes(metrics) | {
            f"seconds/{phase}": seconds for phase, seconds in self._seconds.items()
        }
        announce(ProgressEvent("step", self.step_count, self.total_steps, merged))
        first = self.wiring.tracks[0]
        return merged, rollouts[first.name]

    def _sample(self) -> tuple[DataProto, dict[str, DataProtoRef]]:
        """Return the step's prompts and a rollout of each track, perhaps started before."""
        engine, self.staleness = self._engine_ahead, None
        if engine is None or not engine.ahead:
            prompts = self.prompts.next(self.step_count)
            self.record.add_prompts(prompts)
            rollouts = self._rollout(prompts)
            for track in self.wiring.tracks:
                if track.sampler.engine.carries_over:
                    self.prompts.leave(prompts, track.sampler.engine.unfinished)
            return prompts, rollouts
        (track,) = self.wiring.tracks
        with self._phase("rollout"):
            ahead, rollout = engine.next_rollout()
        self.record.add_prompts(ahead.prompts, ahead.order)
        self.staleness = track.learner.backend.weight_version().number - ahead.version.number
        return ahead.prompts, {track.name: rollout}

    def _rollout(self, prompts: DataProto, attempt: int = 0) -> dict[str, DataProtoRef]:
        """Sample one batch per track; a track may use the batches of those before it.

        Args: attempt: number of the rollout in its step.
        """
        rollouts: dict[str, DataProtoRef] = {}
        with self._phase("rollout"):
            for track in self.wiring.tracks:
                rows = track.sampler.sample(prompts, rollouts, self.step_count, attempt)
                if track.siblings_share is not None:
                    groups = rows.non_tensor_batch[track.siblings_share].tolist()
                    rows.replace(DataProto.from_dict(non_tensors=id_columns(groups)))
                rollouts[track.name] = rows
        return rollouts

    def _reward(self, track: Track, prompts: DataProto, rollouts: Rollouts) -> dict[str, float]:
        """Compute the rewards of a track's rollout, with length penalty and greedy baseline, in
        place.

        Returns: metrics.
        """
        algorithm, rollout = track.learner.algorithm, rollouts[track.name]
        overlong, limit = (
            getattr(algorithm.config, "overlong", None),
            self.recipe.rollout.max_new_tokens,
        )
        with self._phase("reward"):
            scored = track.add_rewards(rollout, rollouts)
            metrics = scored | self._observe(rollout) | shape_overlong(rollout, overlong, limit)
        if algorithm.needs_greedy_baseline:
            with self._phase("baseline"):
                greedy = self.wiring.held_out.play(prompts_of(rollout, prompts), limit)
                assert isinstance(greedy, DataProtoRef)  # only a policy that samples has a baseline
                track.add_rewards(greedy, {track.name: greedy})
                shape_overlong(greedy, overlong, limit)
                metrics |= add_greedy_rewards(rollout, greedy)
        return metrics

    def _observe(self, rollout: DataProtoRef) -> dict[str, float]:
        """Report to a curriculum which replies were right; return its metrics."""
        if not isinstance(self.source, CurriculumSource):
            return {}
        good_B = ~rollout.tensor("failed")
        return self.source.observe(
            rollout.non_tensor_batch["uid"][good_B.numpy()],
            rollout.tensor("rewards")[good_B].tolist(),
        )

    def _with_advantages(
        self, track: Track, rollout: DataProtoRef, metrics: dict[str, float]
    ) -> DataProto | DataProtoRef:
        """Return the batch to train a track on. Args: metrics: of the track; some are added."""
        batch, num_sampled, refilled = self._refilled(track, rollout)
        with self._phase("advantage"):
            add_measures(track.learner, batch, self.record.items)
            advantages = add_advantages(
                track.learner.algorithm, batch, group_ids(batch.non_tensor_batch[GROUP].tolist())
            )
        metrics |= refilled | advantages
        if self.staleness is None:
            metrics["rollout_tokens_per_second"] = num_sampled / self._seconds["rollout"]
        else:
            metrics["staleness"] = float(self.staleness)
        if self._engine_ahead or track.sampler.engine.carries_over:
            metrics |= staleness_metrics(batch, track.learner.backend.weight_version())
        if track.sampler.engine.parked:
            metrics["offloaded_bytes"] = float(track.sampler.engine.freed_bytes)
        return batch

    def _refilled(
        self, track: Track, rollout: DataProtoRef
    ) -> tuple[DataProto | DataProtoRef, float, dict[str, float]]:
        """Replace groups without a learning signal by fresh rollouts, if the algorithm samples
        dynamically.

        Returns: the batch to train on, the number of tokens sampled for it, and counts.
        """
        algorithm = track.learner.algorithm
        if not algorithm.dynamic_sampling:
            self.record.tracks[track.name] = [Portion(rollout)]
            return rollout, float(rollout.tensor("num_tokens").sum()), {}
        found = Refill(self.recipe.training.prompts_per_step, self.recipe.rows_per_prompt)
        found.add(rollout)
        for attempt in range(1, algorithm.max_extra_rollouts + 1):
            if not found.num_missing:
                break
            prompts = self.prompts.next(self.step_count, attempt)
            self.record.add_prompts(prompts)
            extra = self._rollout(prompts, attempt)
            self._reward(track, prompts, extra)
            found.add(extra[track.name])
        batch = found.batch()
        self.record.tracks[track.name] = [Portion(batch), *found.left_out(batch)]
        return batch, float(found.num_tokens), found.metrics()

    def _use_engines_meanwhile(self) -> None:
        """Let engines sleep, or start the rollouts of later steps up to the next checkpoint."""
        for track in self.wiring.tracks:
            track.sampler.engine.rest()
        engine, per_iteration = self._engine_ahead, self.recipe.training.steps_per_iteration
        left = per_iteration - 1 - self.step_count % per_iteration
        wanted = min(self.recipe.rollout.steps_ahead, left)
        if engine is not None and len(engine.ahead) < wanted:
            with self._phase("sync"):
                engine.start_rollouts(wanted, self.step_count + 1, self.prompts.next)

    @property
    def _engine_ahead(self) -> OwnEngine | None:
        """The engine that samples ahead of training; None if they take turns."""
        engine = self.wiring.tracks[0].sampler.engine
        return engine if self.recipe.rollout.steps_ahead and isinstance(engine, OwnEngine) else None

    def _train(self, batches: dict[str, Batch]) -> dict[str, dict[str, float]]:
        """Train on the rewarded batches: jointly, or each track with its own stack.

        Returns: metrics by track.
        """
        joint_stack = self.wiring.joint_stack
        if joint_stack is not None:
            for name, batch in batches.items():
                joint_stack.receive(batch, name)
            result = joint_stack.train()
            for name, stage in getattr(result, "stages", {}).items():
                self.record.add_log_probs(name, stage.log_probs)
            return result.to_floats()
        trained = {}
        for name, batch in batches.items():
            learner = self.tracks[name].learner
            result = learner.stack.train(batch)
            self.record.add_log_probs(name, getattr(result, "log_probs", ()))
            trained[name] = result.to_floats()
            if learner.critic is not None:
                trained[name] |= critic_metrics(learner.critic.stack.train(batch).to_floats())
        return trained

    def _adapt(
        self, track: Track, batch: DataProto | DataProtoRef, metrics: dict[str, float]
    ) -> None:
        """Update the adaptive coefficients from the step's metrics, which are reduced over all
        ranks.

        Args: metrics: of the track; some are added. Raises: ModelError when the engine's
        log-probabilities are too far from the trainer's.
        """
        learner = track.learner
        step = self.step_count + 1
        watch_delta(metrics, learner.max_delta_log_prob, len(batch), step, self.total_steps)
        learner.algorithm.observe(metrics, len(batch))
        _tell_coefficients(learner)
        metrics |= learner.algorithm.state_dict()
        metrics["train_tokens_per_second"] = (
            float(batch.tensor("num_tokens").sum()) / self._seconds["train"]
        )

    def sync_weights(self) -> None:
        """Send dedicated engines the rollout weights, unless they hold them or are busy."""
        if not (self._engine_ahead and self._engine_ahead.is_busy):
            for track in self.wiring.tracks:
                track.sampler.engine.up_to_date(evaluation=False)

    @property
    def held_out_scores(self) -> tuple[str, ...]:
        """Columns of `evaluate`, besides the reward, whose means are part of the evaluation."""
        return self.wiring.held_out.scores

    def evaluate(
        self,
        items: Sequence[Item],
        max_new_tokens: int,
        choice: EvaluationSampling | None = None,
    ) -> Batch:
        """Play held-out rows in order; with the moving average of the weights if the recipe sets
        `ema.evaluate`.

        Args: choice: how replies are chosen, and how many; unset is as the recipe's `evaluation`.
        """
        with self._phase("evaluate"), self._evaluated_weights():
            usual = None if self.recipe.evaluation.is_greedy else self.recipe.evaluation
            return self.wiring.held_out.play(prompt_batch(items), max_new_tokens, choice or usual)

    def prepare(self, held_out: Sequence[Item]) -> None:
        """Compute everything that needs the model before training; called once, before a checkpoint
        is loaded."""
        if self.wiring.references is not None:
            self.wiring.references.prepare(self.source_items, held_out)

    def with_reference(self, held_out: Sequence[Item]) -> Sequence[Item]:
        """Return the held-out rows, with the reference model's log-probabilities if scores need
        them."""
        references = self.wiring.references
        if references is None:
            return held_out
        return references.added_to(held_out)

    def backends(self) -> dict[str, BackendHandle]:
        """Return the FSDPBackend of each trained model, by name."""
        return self.wiring.policies

    def notes(self) -> list[str]:
        """Return a line for each computation that a model does in an unusual way, with the
        reason."""
        return [line for part in self.wiring.with_notes for line in part.notes()]

    def save(self, folder: str) -> None:
        """Write every model's checkpoint under `folder`."""
        with self._phase("save"):
            for name, backend in self.trained_models().items():
                backend.save(f"{folder}/{name}")

    def load(self, folder: str) -> None:
        """Restore every model from `folder`."""
        for name, backend in self.trained_models().items():
            backend.load(f"{folder}/{name}")

    def state_dict(self) -> dict[str, Any]:
        """Return the driver's own state: step, data position and adaptive coefficients."""
        coefficients = {
            name: track.learner.algorithm.state_dict() for name, track in self.tracks.items()
        }
        return {
            "step": self.step_count,
            "source": self.source.state_dict(),
            "algorithms": coefficients,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()` and drop rollouts that were started ahead."""
        if self._engine_ahead:
            self._engine_ahead.ahead.clear()
        self.prompts.clear()
        self.step_count = state["step"]
        self.source.load_state_dict(state["source"])
        for name, coefficients in state["algorithms"].items():
            self.tracks[name].learner.algorithm.load_state_dict(coefficients)
            _tell_coefficients(self.tracks[name].learner)

    def export(self, folder: str) -> None:
        """Write each model that is registered as an ordinary model folder under `folder`."""
        with self._phase("export"):
            for name, backend in self.wiring.exported.items():
                backend.export(f"{folder}/{name}".rstrip("/"))

    def pids(self) -> list[int]:
        """Return the process ids of all workers."""
        return [pid for group in self.groups for pid in group.pids()]

    def peak_memory(self) -> int:
        """Return the largest peak memory of a training worker so far, in bytes."""
        return max(peak for backend in self.backends().values() for peak in backend.peak_memory())

    def close(self) -> None:
        """End the workers."""
        for group in self.groups:
            group.close()
        self.groups = []

    def trained_models(self) -> dict[str, BackendHandle]:
        """Return the backends of all models in a checkpoint: the policies and their critics."""
        critics = {name: track.learner.critic for name, track in self.tracks.items()}
        is_alone = len(self.tracks) == 1
        named = {
            "critic" if is_alone else f"{name}-critic": one.backend
            for name, one in critics.items()
            if one
        }
        return self.backends() | named

    @contextmanager
    def _evaluated_weights(self) -> Iterator[None]:
        if self.recipe.ema is None or not self.recipe.ema.evaluate:
            yield
            return
        backends = self.backends().values()
        for backend in backends:
            backend.apply_eval_ema()
        try:
            yield
        finally:
            for backend in backends:
                backend.restore_from_eval()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        announce(ProgressEvent(name, self.step_count + 1, self.total_steps))
        start = time.perf_counter()
        yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start


def _tell_coefficients(learner: Learner) -> None:
    if coefficients := learner.algorithm.state_dict():
        learner.copies.load_state_dict(coefficients)


def _with_prefixes(metrics: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Merge the metrics of all tracks; names get the track's as a prefix if there are several."""
    if len(metrics) == 1:
        return dict(*metrics.values())
    merged: dict[str, float] = {}
    for track, found in metrics.items():
        merged |= {f"{track}/{name}": value for name, value in found.items()}
    return merged
