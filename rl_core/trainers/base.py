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
from rl_core.data.order import training_source
from rl_core.data_proto import DataProto
from rl_core.distributed import Block, DataProtoRef, DevicePool, Remote
from rl_core.errors import RewardError
from rl_core.rollout.decode import StopReason
from rl_core.trainers.env_metrics import environment_metrics
from rl_core.trainers.progress import ProgressEvent, announce
from rl_core.trainers.rewards import earned_parts
from schemas.recipe import Recipe


@dataclass
class Track:
    """One sequence of actions in a rollout, with the stack that trains it."""

    algorithm: Any
    """The driver's StageAlgorithm: advantages, and the coefficients that adapt."""
    stack: Remote
    copies: Remote | None = None
    """The ranks' own copies of the algorithm, which are told the driver's coefficients."""


class Trainer(ABC):
    """A running training job: workers, data position and step count."""

    def __init__(self, recipe: Recipe, source_model: str, items: Sequence[dict[str, Any]]) -> None:
        self.recipe = recipe
        self.source_model = source_model
        self.source_items = items
        self.source = training_source(items, recipe.training.prompts_per_step, recipe.seed, recipe.data.blend)
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
        self._seconds: dict[str, float] = {}

    @property
    def total_steps(self) -> int:
        return self.recipe.training.num_iterations * self.recipe.training.steps_per_iteration

    @property
    def held_out_scores(self) -> tuple[str, ...]:
        """Columns of `play_held_out`, besides the reward, whose means belong into the evaluation."""
        return ()

    @abstractmethod
    def build(self) -> None:
        """Place the workers and fill `groups` and `tracks`."""

    def prepare(self, held_out: Sequence[dict[str, Any]]) -> None:
        """What only the model before training can do; called once, before a checkpoint is loaded."""
        return None

    @abstractmethod
    def rollout(self, prompts: DataProto) -> dict[str, DataProtoRef]:
        """One batch per track, siblings adjacent, with rewards; the rows stay with the ranks that made them."""

    @abstractmethod
    def play_held_out(self, prompts: DataProto, max_new_tokens: int) -> DataProtoRef:
        """One greedy episode per prompt."""

    @abstractmethod
    def backends(self) -> dict[str, Remote]:
        """The FSDPBackend of each trained model, by name."""

    def sync_weights(self) -> None:
        """Bring the weights of dedicated engines up to date; nothing where engines share the trained module."""
        return None

    def step(self) -> tuple[dict[str, float], DataProtoRef]:
        """One turn of the loop. Returns: the step's metrics, and the rollout of the last track."""
        self._seconds = {}
        prompts = prompt_batch(self.source.next_batch())
        with self._phase("rollout"):
            rollouts = self.rollout(prompts)
        metrics: dict[str, float] = {}
        for name, rollout in rollouts.items():
            prefix = "" if len(rollouts) == 1 else f"{name}/"
            for key, value in self._learn(self.tracks[name], rollout).items():
                metrics[prefix + key] = value
        with self._phase("sync"):
            self.sync_weights()
        self.step_count += 1
        metrics |= {f"seconds/{phase}": seconds for phase, seconds in self._seconds.items()}
        announce(ProgressEvent("step", self.step_count, self.total_steps, metrics))
        return metrics, rollout

    def evaluate(self, items: Sequence[dict[str, Any]], max_new_tokens: int) -> DataProtoRef:
        """Play held-out rows greedily, in order; with the moving average, where it says so."""
        with self._phase("evaluate"), self._evaluated_weights():
            return self.play_held_out(prompt_batch(items), max_new_tokens)

    def save(self, folder: str) -> None:
        """Write every model's checkpoint under `folder`."""
        with self._phase("save"):
            for name, backend in self.backends().items():
                backend.save(f"{folder}/{name}")

    def load(self, folder: str) -> None:
        """Restore every model from `folder`."""
        for name, backend in self.backends().items():
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

    def pids(self) -> list[int]:
        """Process ids of all workers."""
        return [pid for group in self.groups for pid in group.pids()]

    def close(self) -> None:
        """End the workers."""
        for group in self.groups:
            group.close()
        self.groups = []

    def _learn(self, track: Track, rollout: DataProtoRef) -> dict[str, float]:
        with self._phase("reward"):
            reward_metrics = self.add_rewards(rollout)
        with self._phase("advantage"):
            advantage_metrics = add_advantages(track.algorithm, rollout, self.recipe.rows_per_prompt)
        with self._phase("train"):
            trained = track.stack.train(rollout).to_floats()
        num_tokens = float(rollout.tensor("num_tokens").sum())
        return (
            self.describe(rollout)
            | reward_metrics
            | advantage_metrics
            | trained
            | self._adapt(track, advantage_metrics | trained, len(rollout))
            | {
                "rollout_tokens_per_second": num_tokens / self._seconds["rollout"],
                "train_tokens_per_second": num_tokens / self._seconds["train"],
            }
        )

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


def add_advantages(algorithm: Any, rollout: DataProto | DataProtoRef, num_siblings: int) -> dict[str, float]:
    """Put `advantages` [B, T] into the rollout, in place. Rows without a verdict take no part.

    An algorithm also gets where in the row each part of the reward was earned (`turn_rewards`) and what the reward is
    made of (`reward/<key>`), where the rollout says so.
    Raises: RewardError when every row failed, with the first reason.
    """
    failed_B = rollout.tensor("failed")
    good_B = ~failed_B
    mask_BT = rollout.tensor("response_mask")
    if not bool(good_B.any()):
        raise RewardError(
            f"every row of the rollout is without a verdict; first: {rollout.non_tensor_batch['error'][0]}"
        )
    group_ids_B = torch.arange(len(rollout)) // num_siblings
    advantages_BT = torch.zeros(mask_BT.shape)
    advantages_BT[good_B], metrics = algorithm.advantages(
        rollout.tensor("rewards")[good_B], group_ids_B[good_B], mask_BT[good_B], **earned_parts(rollout, good_B)
    )
    rollout.union(DataProto.from_dict({"advantages": advantages_BT}))
    return {**to_floats(metrics), "failed_rows": float(failed_B.sum())}


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
