"""The one loop: rollout → reward → advantage → train → weight sync → log.

A domain trainer says how the workers are wired and which tracks a rollout has; it does not touch the loop.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from rl_core.algorithms.metrics import to_floats
from rl_core.data.curriculum import CurriculumSource
from rl_core.data.order import training_source
from rl_core.data_proto import DataProto
from rl_core.distributed import Block, DataProtoRef, DevicePool, Remote
from rl_core.errors import RewardError
from rl_core.rollout.decode import StopReason
from rl_core.train.critic import critic_metrics
from rl_core.trainers.drift import watch_delta
from rl_core.trainers.env_metrics import environment_metrics
from rl_core.trainers.measures import row_measures
from rl_core.trainers.progress import ProgressEvent, announce
from rl_core.trainers.refill import Refill
from rl_core.trainers.shaping import add_greedy_rewards, shape_overlong
from rl_core.trainers.tracks import sibling_groups
from schemas.recipe import Recipe


@dataclass
class Critic:
    """The extra role of algorithms with `needs_critic`: a value model with an optimiser and a checkpoint of its own."""

    stack: Remote
    backend: Remote


@dataclass
class Track:
    """One sequence of actions in a rollout, with the stack that trains it."""

    algorithm: Any
    """The driver's StageAlgorithm: advantages, and the coefficients that adapt."""
    stack: Remote
    copies: Remote | None = None
    """The ranks' own copies of the algorithm, which are told the driver's coefficients."""
    critic: Critic | None = None
    """What gives the advantages their values, where the algorithm has one."""
    siblings_share: str | None = None
    """Object column that is equal for siblings; unset, the rows of each prompt are adjacent."""
    learns: bool = True
    """Whether it is trained; else it is only sampled and scored."""
    max_delta_log_prob: float | None = None
    """Limit of what trainer and engine may differ by, where actions are tokens; see `drift`."""


class Trainer(ABC):
    """A running training job: workers, data position and step count."""

    def __init__(self, recipe: Recipe, source_model: str, items: Sequence[dict[str, Any]]) -> None:
        self.recipe = recipe
        self.source_model = source_model
        self.source_items = items
        self.source = training_source(
            items, recipe.training.prompts_per_step, recipe.seed, recipe.data.blend, recipe.data.curriculum
        )
        self.step_count = 0
        self.groups: list[Block] = []
        self.tracks: dict[str, Track] = {}
        placement = recipe.placement
        self.pool = DevicePool(
            placement.num_devices,
            placement.devices_per_node,
            placement.workers_per_device,
            device_kind=placement.device,
            threads_per_device=placement.threads_per_device,
            collective_timeout_s=placement.collective_timeout_s,
        )
        self.staleness: int | None = None
        """Changes of the weights since those that sampled the present step; None where the latest did."""
        self._seconds: dict[str, float] = {}

    @property
    def total_steps(self) -> int:
        return self.recipe.training.num_iterations * self.recipe.training.steps_per_iteration

    held_out_scores: tuple[str, ...] = ()
    """Columns of `play_held_out`, besides the reward, whose means belong into the evaluation."""

    @abstractmethod
    def build(self) -> None:
        """Place the workers and fill `groups` and `tracks`."""

    def prepare(self, held_out: Sequence[dict[str, Any]]) -> None:
        """What only the model before training can do; called once, before a checkpoint is loaded."""
        return None

    def with_reference(self, held_out: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Rows with what the model before training says of them, where their scores compare with that; here none do."""
        return held_out

    @abstractmethod
    def rollout(self, prompts: DataProto, attempt: int = 0) -> dict[str, DataProtoRef]:
        """One batch per track, siblings adjacent, with rewards; the rows stay with the ranks that made them.

        Args: attempt: number of the rollout within its step, which has its own random numbers.
        """

    @abstractmethod
    def play_held_out(self, prompts: DataProto, max_new_tokens: int) -> DataProtoRef:
        """One greedy episode per prompt."""

    @abstractmethod
    def backends(self) -> dict[str, Remote]:
        """The FSDPBackend of each trained model, by name."""

    def notes(self) -> list[str]:
        """A line for everything about the models that is computed otherwise than usual, and why."""
        return [line for backend in self.backends().values() for line in backend.notes()]

    def sync_weights(self) -> None:
        """Bring the weights of dedicated engines up to date; nothing where engines share the trained module."""
        return None

    def step(self) -> tuple[dict[str, float], DataProtoRef]:
        """One turn of the loop. Returns: the step's metrics, and the rollout of the last track."""
        self._seconds = {}
        prompts, rollouts = self.sample()
        metrics: dict[str, float] = {}
        for name, learned in self._learn(prompts, rollouts).items():
            prefix = "" if len(rollouts) == 1 else f"{name}/"
            metrics |= {prefix + key: value for key, value in learned.items()}
        with self._phase("sync"):
            self.sync_weights()
        self.step_count += 1
        metrics |= {f"seconds/{phase}": seconds for phase, seconds in self._seconds.items()}
        announce(ProgressEvent("step", self.step_count, self.total_steps, metrics))
        return metrics, list(rollouts.values())[-1]

    def sample(self) -> tuple[DataProto, dict[str, DataProtoRef]]:
        """The step's prompts, and what the policy makes of them."""
        prompts = prompt_batch(self.source.next_batch())
        with self._phase("rollout"):
            return prompts, self.rollout(prompts)

    def evaluate(self, items: Sequence[dict[str, Any]], max_new_tokens: int) -> DataProtoRef:
        """Play held-out rows greedily, in order; with the moving average, where it says so."""
        with self._phase("evaluate"), self._evaluated_weights():
            return self.play_held_out(prompt_batch(items), max_new_tokens)

    def save(self, folder: str) -> None:
        """Write every model's checkpoint under `folder`."""
        with self._phase("save"):
            for name, backend in self._trained_models().items():
                backend.save(f"{folder}/{name}")

    def load(self, folder: str) -> None:
        """Restore every model from `folder`."""
        for name, backend in self._trained_models().items():
            backend.load(f"{folder}/{name}")

    def state_dict(self) -> dict[str, Any]:
        """The driver's own state: step, data position and adaptive coefficients."""
        coefficients = {name: track.algorithm.state_dict() for name, track in self.tracks.items()}
        return {"step": self.step_count, "source": self.source.state_dict(), "algorithms": coefficients}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore `state_dict()`."""
        self.step_count = state["step"]
        self.source.load_state_dict(state["source"])
        for name, coefficients in state["algorithms"].items():
            self.tracks[name].algorithm.load_state_dict(coefficients)
            self._tell_coefficients(self.tracks[name])

    def export(self, folder: str) -> None:
        """Write what is registered, as an ordinary model folder."""
        with self._phase("export"):
            self.write_model(folder)

    def write_model(self, folder: str) -> None:
        """The trained models, in the form that is registered."""
        self.backends()["policy"].export(folder)

    def pids(self) -> list[int]:
        """Process ids of all workers."""
        return [pid for group in self.groups for pid in group.pids()]

    def peak_memory(self) -> int:
        """Bytes that the worker which trains and needed most has held so far."""
        return max(peak for backend in self.backends().values() for peak in backend.peak_memory())

    def close(self) -> None:
        """End the workers."""
        for group in self.groups:
            group.close()
        self.groups = []

    def before_training(self) -> None:
        """What is to happen between sampling a step and training on it; here nothing."""
        return None

    def train(self, batches: dict[str, DataProto | DataProtoRef]) -> dict[str, dict[str, float]]:
        """Train each track on its rewarded batch, one after the other. Returns: metrics by track."""
        trained = {}
        for name, batch in batches.items():
            track = self.tracks[name]
            trained[name] = track.stack.train(batch).to_floats()
            if track.critic is not None:
                trained[name] |= critic_metrics(track.critic.stack.train(batch).to_floats())
        return trained

    def _learn(self, prompts: DataProto, rollouts: dict[str, DataProtoRef]) -> dict[str, dict[str, float]]:
        """Rewards and advantages of every track, in order, then the training of those that learn."""
        metrics: dict[str, dict[str, float]] = {}
        batches: dict[str, DataProto | DataProtoRef] = {}
        for name, rollout in rollouts.items():
            metrics[name] = self._reward(self.tracks[name], prompts, rollout)
            if self.tracks[name].learns:
                batches[name] = self._with_advantages(name, rollout, metrics[name])
            metrics[name] = self.describe(rollout) | metrics[name]
        self.before_training()
        with self._phase("train"):
            trained = self.train(batches)
        for name, batch in batches.items():
            metrics[name] |= trained[name]
            watch_delta(trained[name], self.tracks[name].max_delta_log_prob, self.step_count + 1, self.total_steps)
            metrics[name] |= self._adapt(self.tracks[name], metrics[name], len(batch))
            num_tokens = float(batch.tensor("num_tokens").sum())
            metrics[name]["train_tokens_per_second"] = num_tokens / self._seconds["train"]
        return metrics

    def _with_advantages(self, name: str, rollout: DataProtoRef, metrics: dict[str, float]) -> DataProto | DataProtoRef:
        """What to train a track on. Args: metrics: of the track; some are added."""
        batch, num_sampled, refilled = self._refilled(name, rollout)
        with self._phase("advantage"):
            self._measure(self.tracks[name], batch)
            advantages = add_advantages(self.tracks[name].algorithm, batch, self._group_ids(self.tracks[name], batch))
        metrics |= refilled | advantages
        if self.staleness is None:
            metrics["rollout_tokens_per_second"] = num_sampled / self._seconds["rollout"]
        else:
            metrics["staleness"] = float(self.staleness)
        return batch

    def _reward(self, track: Track, prompts: DataProto, rollout: DataProtoRef) -> dict[str, float]:
        """Everything that changes or compares with the rewards of a rollout, in place."""
        overlong, limit = getattr(track.algorithm.config, "overlong", None), self.recipe.rollout.max_new_tokens
        with self._phase("reward"):
            metrics = self.add_rewards(rollout) | self._observe(rollout) | shape_overlong(rollout, overlong, limit)
        if track.algorithm.needs_greedy_baseline:
            with self._phase("baseline"):
                greedy = self.play_held_out(prompts, limit)
                self.add_rewards(greedy)
                shape_overlong(greedy, overlong, limit)
                metrics |= add_greedy_rewards(rollout, greedy)
        return metrics

    def _observe(self, rollout: DataProtoRef) -> dict[str, float]:
        """Tell a curriculum which replies were right."""
        if not isinstance(self.source, CurriculumSource):
            return {}
        good_B = ~rollout.tensor("failed")
        return self.source.observe(
            rollout.non_tensor_batch["uid"][good_B.numpy()], rollout.tensor("rewards")[good_B].tolist()
        )

    def _refilled(self, name: str, rollout: DataProtoRef) -> tuple[DataProto | DataProtoRef, float, dict[str, float]]:
        """Where the algorithm samples dynamically, roll out again until every group teaches something.

        Returns: what to train on, tokens that were sampled for it, and counts.
        """
        track, recipe = self.tracks[name], self.recipe
        if not track.algorithm.dynamic_sampling:
            return rollout, float(rollout.tensor("num_tokens").sum()), {}
        found = Refill(recipe.training.prompts_per_step, recipe.rows_per_prompt)
        found.add(rollout)
        for attempt in range(1, track.algorithm.max_extra_rollouts + 1):
            if not found.num_missing:
                break
            prompts = prompt_batch(self.source.next_batch())
            with self._phase("rollout"):
                extra = self.rollout(prompts, attempt)[name]
            self._reward(track, prompts, extra)
            found.add(extra)
        return found.batch(), float(found.num_tokens), found.metrics()

    def _group_ids(self, track: Track, batch: DataProto | DataProtoRef) -> torch.Tensor:
        """[B] integers, equal for siblings."""
        if track.siblings_share is None:
            return torch.arange(len(batch)) // self.recipe.rows_per_prompt
        return sibling_groups(batch.non_tensor_batch[track.siblings_share].tolist())

    def _measure(self, track: Track, batch: DataProto | DataProtoRef) -> None:
        """Add what the advantages need to know of the models, in place."""
        if track.algorithm.kl_in_reward or track.algorithm.needs_sum_squared_probs:
            batch.union(track.stack.measure(batch).fetch())
        if track.critic is not None:
            batch.union(track.critic.stack.values(batch).fetch())

    def _trained_models(self) -> dict[str, Remote]:
        """Everything that a checkpoint holds: the policies, and their critics."""
        critics = {name: track.critic.backend for name, track in self.tracks.items() if track.critic is not None}
        named = {"critic" if len(self.tracks) == 1 else f"{name}-critic": one for name, one in critics.items()}
        return self.backends() | named

    def add_rewards(self, rollout: DataProtoRef) -> dict[str, float]:
        """Add what scorers say to the rewards of a rollout, in place; here nothing. Returns: metrics."""
        return {}

    def describe(self, rollout: DataProtoRef) -> dict[str, float]:
        """The metrics of a rollout by itself."""
        return rollout_metrics(rollout) | environment_metrics(rollout, self.recipe.environments)

    def _adapt(self, track: Track, measured: dict[str, float], num_rows: int) -> dict[str, float]:
        """Move the coefficients that adapt, once a step, by what all ranks measured together. Returns: their values."""
        track.algorithm.observe(measured, num_rows)
        self._tell_coefficients(track)
        return track.algorithm.state_dict()

    @staticmethod
    def _tell_coefficients(track: Track) -> None:
        coefficients = track.algorithm.state_dict()
        if coefficients and track.copies is not None:
            track.copies.load_state_dict(coefficients)

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


def prompt_batch(items: Sequence[dict[str, Any]]) -> DataProto:
    """Prompts as a batch with the one object column `item`."""
    return DataProto.from_dict(non_tensors={"item": list(items)})


def add_advantages(algorithm: Any, rollout: DataProto | DataProtoRef, group_ids_B: torch.Tensor) -> dict[str, float]:
    """Put `advantages` [B, T] into the rollout, in place. Rows without a verdict take no part.

    Args: group_ids_B: [B] integers, equal for siblings.

    An algorithm also gets where in the row each part of the reward was earned (`turn_rewards`), what the reward is made
    of (`reward/<key>`) and `MEASURED`, where the rollout says so. With a critic there are also its `returns` [B, T].
    Raises: RewardError when every row failed, with the first reason.
    """
    failed_B = rollout.tensor("failed")
    good_B = ~failed_B
    mask_BT = rollout.tensor("response_mask")
    if not bool(good_B.any()):
        raise RewardError(
            f"every row of the rollout is without a verdict; first: {rollout.non_tensor_batch['error'][0]}"
        )
    rows = rollout.tensor("rewards")[good_B], group_ids_B[good_B], mask_BT[good_B]
    measured = row_measures(rollout, good_B)
    columns = {"advantages": torch.zeros(mask_BT.shape)}
    columns["advantages"][good_B], metrics = algorithm.advantages(*rows, **measured)
    if algorithm.needs_critic:
        columns["returns"] = torch.zeros(mask_BT.shape)
        columns["returns"][good_B] = algorithm.returns(*rows, **measured)
    rollout.union(DataProto.from_dict(columns))
    taught_B = (columns["advantages"][good_B] != 0).any(1)
    counts = {"failed_rows": float(failed_B.sum()), "zero_advantage_share": 1.0 - float(taught_B.double().mean())}
    return to_floats(metrics) | counts


def rollout_metrics(rollout: DataProto | DataProtoRef) -> dict[str, float]:
    """Reward, length and turns of a rollout, over the rows that have a verdict; NaN where there are none."""
    good_B = ~rollout.tensor("failed")
    rewards_B = rollout.tensor("rewards")[good_B]
    lengths_B = rollout.tensor("num_tokens")[good_B].float()
    truncated = [StopReason(reason).is_truncated for reason in rollout.non_tensor_batch["stop_reason"]]
    return {
        "reward_mean": float(rewards_B.mean()),
        "reward_std": float(rewards_B.std(correction=0)),
        "response_length_mean": float(lengths_B.mean()),
        "response_length_max": float(lengths_B.max()),
        "truncated_share": float(torch.tensor(truncated)[good_B].float().mean()),
        "turns_mean": float(rollout.tensor("num_turns")[good_B].float().mean()),
    }
