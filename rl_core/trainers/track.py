"""The parts of a trainer: its tracks, and the objects that they share.

A track is one sequence of actions in a rollout, with its sampler, scorer and learner. Text, vision,
pairs and diffusion have one track. The prompt enhancer and the unified model have two, `text` and
`images`, where each row of the second was drawn from a row of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rl_core.algorithms.base import StageAlgorithm
from rl_core.data.prepare.items import Item
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.rollout.episodes.unfinished import Unfinished
from rl_core.rollout.sample_ids import GROUP, group_ids, groups_of
from rl_core.train.weights.buckets import WeightVersion
from rl_core.trainers.handles import (
    AlgorithmHandle,
    BackendHandle,
    CriticStackHandle,
    EngineHandle,
    JointStackHandle,
    NotedHandle,
    ParkedHandle,
    StackHandle,
    SyncHandle,
)
from schemas.sections.sampling import EvaluationSampling

Rollouts = Mapping[str, DataProtoRef]
"""Batches of the present step that are already sampled, by name of the track."""


@dataclass
class Engine:
    """An engine that samples from a policy, with its weight sync if it has its own copy of the
    weights."""

    handle: EngineHandle
    sync: SyncHandle | None = None
    sleeps: bool = False
    """True if the engine frees its memory during training (vLLM)."""
    parked: tuple[ParkedHandle, ...] = ()
    """Backends and teachers whose memory is freed while it samples (`placement.offload`)."""
    freed_bytes: int = 0
    """Bytes that the last sampling had freed, of all ranks."""
    sent_bytes: int = 0
    """Bytes that the last sync sent."""
    weight_bytes: int = 0
    """Bytes of all weights that it could have sent."""
    carries_over: bool = False
    """True if a rollout may leave groups to the next one (`rollout.carry_over`)."""
    unfinished: list[Unfinished] = field(default_factory=list)
    """Groups that the last rollout left, in the order of the ranks."""

    def up_to_date(self, *, evaluation: bool) -> WeightVersion | None:
        """Send the engine the weights of rollouts, or of evaluations, unless it already holds them.

        Returns: the version that it then holds; None for an engine that samples with the trained
        module itself.
        """
        if self.sync is None:
            return None
        report = self.sync.sync(evaluation=evaluation)
        # A sync of the user's may report the version alone.
        self.sent_bytes = getattr(report, "num_bytes", 0)
        # 0 where the engine held the weights already.
        self.weight_bytes = getattr(report, "weight_bytes", 0) or self.weight_bytes
        return report.version

    def sync_metrics(self) -> dict[str, float]:
        """Return what the last sync sent; nothing for an engine that is sent none."""
        if not self.weight_bytes:
            return {}
        share = self.sent_bytes / self.weight_bytes
        return {"sync_bytes": float(self.sent_bytes), "sync_share": share}

    def rollout(self, prompts: DataProto, step: int, attempt: int = 0) -> DataProtoRef:
        """Sample the group of each prompt with the latest weights.

        Args: step, attempt: seed the sampling.
        """
        version = self.up_to_date(evaluation=False)
        with self.room():
            rollout = self.handle.rollout(prompts, step, version, attempt)
        self.note_unfinished()
        return rollout

    def note_unfinished(self) -> None:
        """Fetch the groups that the last rollout left, if it may leave any."""
        if self.carries_over:
            self.unfinished = [group for rank in self.handle.unfinished() for group in rank]

    def evaluate(self, prompts: DataProto, *options: object, **named: object) -> DataProtoRef:
        """Sample each prompt once with the weights of evaluations.

        Args: options: arguments of the engine's `evaluate` before the version. named: those after
        it.
        """
        version = self.up_to_date(evaluation=True)
        with self.room():
            return self.handle.evaluate(prompts, *options, version, **named)

    @contextmanager
    def room(self) -> Iterator[None]:
        """Free the trainer's memory in the block, if the recipe asks for it."""
        if not self.parked:
            yield
            return
        self.freed_bytes = sum(freed for backend in self.parked for freed in backend.offload())
        try:
            yield
        finally:
            # An engine that can sleep gives its memory back first: both at once may not fit.
            try:
                self.rest()
            finally:
                for backend in self.parked:
                    backend.onload()

    def rest(self) -> None:
        """Free the engine's memory for training, if it can sleep."""
        if self.sleeps:
            self.handle.sleep()


class Sampler(Protocol):
    """Source of the rows of a track."""

    engine: Engine

    def sample(
        self,
        prompts: DataProto,
        rollouts: Rollouts,
        step: int,
        attempt: int,
    ) -> DataProtoRef:
        """Sample one batch, group by group; the rows stay on the ranks that made them.

        Args: prompts: the step's, in the object column `item`. rollouts: of the tracks that were
        sampled before. attempt: number of the rollout in its step; each has its own random numbers.
        """
        ...


@dataclass
class FromPrompts:
    """Sampler that passes the prompts to the engine unchanged."""

    engine: Engine

    def sample(
        self,
        prompts: DataProto,
        rollouts: Rollouts,
        step: int,
        attempt: int,
    ) -> DataProtoRef:
        """Sample the group of each prompt."""
        return self.engine.rollout(prompts, step, attempt)


class Scorer(Protocol):
    """Source of the rewards of a track, in addition to its environments."""

    def add_rewards(self, rollout: DataProtoRef, rollouts: Rollouts) -> dict[str, float]:
        """Complete `rewards` and `turn_rewards` of the track's rollout, in place. Returns: metrics.

        Args: rollouts: of all tracks; tracks that were scored earlier have their rewards.
        """
        ...


@dataclass
class Critic:
    """Value model of algorithms with `needs_critic`, with its own optimizer."""

    stack: CriticStackHandle
    backend: BackendHandle


class Judging(Protocol):
    """Teachers of a learner, as the driver sees them."""

    handles: tuple[ParkedHandle, ...]
    """Teachers with weights of their own on the ranks."""

    def add_to(self, batch: DataProto | DataProtoRef, items: Mapping[str, Item]) -> None:
        """Add to a batch, in place, what the ranks have to know of its teachers. Args: items:
        prompts by uid."""
        ...


@dataclass
class Learner:
    """A policy with its backend, algorithm and training stack."""

    backend: BackendHandle
    algorithm: StageAlgorithm
    """The driver's algorithm, which computes advantages and adapts its coefficients."""
    copies: AlgorithmHandle
    """Copies of the algorithm on the ranks, which get the driver's coefficients."""
    stack: StackHandle
    critic: Critic | None = None
    """Critic that gives the advantages their values, if the algorithm needs one."""
    teaching: Judging | None = None
    """Teachers that judge the samples, if the algorithm needs one."""
    max_delta_log_prob: float | None = None
    """Limit of the distance between the trainer's and the engine's log-probabilities; None for no
    check. See `drift`."""


@dataclass
class Track:
    """One sequence of actions in a rollout."""

    name: str
    sampler: Sampler
    scorer: Scorer | None
    """Source of rewards; None if the rows come with their rewards."""
    learner: Learner
    describe: Callable[[DataProtoRef], dict[str, float]]
    """Function that computes metrics from a rollout alone."""
    siblings_share: str | None = None
    """Object column that is equal within a group, and becomes its `group_id`; None if the
    samples of a prompt are a group."""
    learns: bool = True
    """True if the track is trained; otherwise it is only sampled and scored."""

    def add_rewards(self, rollout: DataProtoRef, rollouts: Rollouts) -> dict[str, float]:
        """Add the scorer's rewards to the rollout, in place, and return its metrics."""
        if self.scorer is None:
            return {}
        return self.scorer.add_rewards(rollout, rollouts)


class HeldOut(Protocol):
    """Evaluation on held-out rows."""

    @property
    def scores(self) -> tuple[str, ...]:
        """Columns of `play`, besides the reward, whose means are part of the evaluation."""
        ...

    def play(
        self, prompts: DataProto, max_new_tokens: int, choice: EvaluationSampling | None = None
    ) -> DataProto | DataProtoRef:
        """Play one row per prompt, in order.

        Args: choice: how tokens are chosen; unset is greedy.
        """
        ...


class References(Protocol):
    """Reference model's log-probabilities of rows, for scores that compare with them."""

    def prepare(self, *rows: Sequence[Item]) -> None:
        """Compute everything that needs the model before training; called once, before a checkpoint
        is loaded."""
        ...

    def added_to(self, rows: Sequence[Item]) -> Sequence[Item]:
        """Return the rows with their `reference`, if the scores need it."""
        ...


@dataclass
class Wiring:
    """The parts of a trainer, as its domain placed them."""

    tracks: tuple[Track, ...]
    """Tracks in sampling order, each after the one it is made from. They are scored in reverse
    order, since the reward of a row may depend on its children."""
    held_out: HeldOut
    policies: dict[str, BackendHandle]
    """The FSDPBackend of each trained model, by its name in checkpoints."""
    exported: dict[str, BackendHandle]
    """The FSDPBackend of each model that is registered, by its subfolder ("" is the export's
    root)."""
    with_notes: list[NotedHandle]
    """Workers whose `notes()` report unusual computations."""
    joint_stack: JointStackHandle | None = None
    """Stack that trains all tracks in one optimizer step; None if each track has its own stack."""
    references: References | None = None


def prompts_of(rollout: DataProtoRef, prompts: DataProto) -> DataProto:
    """Return the prompts of a step that its rollout has samples of: all, but for those that were
    given up (`rollout.extra_prompts`)."""
    kept = set(rollout.non_tensor_batch[GROUP].tolist())
    places = [place for place, group in enumerate(groups_of(prompts)) if group in kept]
    return prompts if len(places) == len(prompts) else prompts[places]


def prompt_batch(items: Sequence[Item], attempt: int = 0) -> DataProto:
    """Return prompts as a batch with the object columns `item` and `group_id`.

    Args: attempt: number of the rollout in its step that they are for.
    """
    ids = group_ids([item["uid"] for item in items], attempt)
    return DataProto.from_dict(non_tensors={"item": list(items), GROUP: ids})
