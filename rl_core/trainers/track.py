"""What a trainer is made of: its tracks, and what they share.

A track is one sequence of actions in a rollout, and says how it is sampled, scored and trained.
Text, vision, pairs and diffusion have one. The prompt enhancer and the unified model have two,
`text` and `images`, where each row of the second was drawn from a row of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rl_core.algorithms.base import StageAlgorithm
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, Remote
from rl_core.distributed.handles import PendingCall, submit
from rl_core.train.weights.buckets import WeightVersion

Rollouts = Mapping[str, DataProtoRef]
"""The present step's batches by name of the track, as far as they are sampled."""


@dataclass
class Engine:
    """What samples a policy, and what brings it the weights where it has a copy of its own."""

    handle: Remote
    sync: Remote | None = None
    sleeps: bool = False
    """Whether it gives its memory back while others train (vLLM)."""

    def up_to_date(self, *, evaluation: bool) -> WeightVersion | None:
        """Send it the weights of rollouts, or of evaluations, unless it holds them.

        Returns: what it holds then; None for an engine that samples with the very module that is
        trained.
        """
        return None if self.sync is None else self.sync.sync(evaluation=evaluation).version

    def rollout(self, prompts: DataProto, step: int, attempt: int = 0) -> DataProtoRef:
        """The group of samples of each prompt, with the latest weights.

        Args: step, attempt: seed the sampling.
        """
        return self.handle.rollout(prompts, step, self.up_to_date(evaluation=False), attempt)

    def start_rollout(self, prompts: DataProto, step: int, version: WeightVersion | None) -> Ahead:
        """Sample beside training. Args: version: what `up_to_date` said."""
        assert version is not None, "an engine beside training has weights of its own"
        return Ahead(prompts, version, submit(self.handle.rollout, prompts, step, version))

    def rest(self) -> None:
        """Make room for training."""
        if self.sleeps:
            self.handle.sleep()


@dataclass(frozen=True)
class Ahead:
    """The next step's rollout, under way while the present one trains."""

    prompts: DataProto
    version: WeightVersion
    """The weights that sample it."""
    pending: PendingCall


class Sampler(Protocol):
    """How the rows of a track come about."""

    engine: Engine

    def sample(
        self,
        prompts: DataProto,
        rollouts: Rollouts,
        step: int,
        attempt: int,
    ) -> DataProtoRef:
        """One batch, siblings adjacent; the rows stay with the ranks that made them.

        Args: prompts: the step's, in the object column `item`. rollouts: of the tracks that were
        sampled before. attempt: number of the rollout within its step, which has its own random
        numbers.
        """
        ...


@dataclass
class FromPrompts:
    """The engine answers the prompts as they are."""

    engine: Engine

    def sample(
        self,
        prompts: DataProto,
        rollouts: Rollouts,
        step: int,
        attempt: int,
    ) -> DataProtoRef:
        """The group of samples of each prompt."""
        return self.engine.rollout(prompts, step, attempt)


class Scorer(Protocol):
    """Where the rewards of a track come from, besides its environments."""

    def add_rewards(self, rollout: DataProtoRef, rollouts: Rollouts) -> dict[str, float]:
        """Complete `rewards` and `turn_rewards` of the track's rollout, in place. Returns: metrics.

        Args: rollouts: of all tracks; those that were scored before have their rewards.
        """
        ...


@dataclass
class Critic:
    """The value model of algorithms with `needs_critic`, which has its own optimiser."""

    stack: Remote
    backend: Remote


@dataclass
class Learner:
    """A policy and what trains it."""

    backend: Remote
    algorithm: StageAlgorithm
    """The driver's: advantages, and the coefficients that adapt."""
    copies: Remote
    """The ranks' own copies of the algorithm, which are told the driver's coefficients."""
    stack: Remote
    critic: Critic | None = None
    """What gives the advantages their values, where the algorithm has one."""
    max_delta_log_prob: float | None = None
    """Limit of what trainer and engine may differ by, where actions are tokens; see `drift`."""


@dataclass
class Track:
    """One sequence of actions in a rollout."""

    name: str
    sampler: Sampler
    scorer: Scorer | None
    """Unset where the rows come with their rewards."""
    learner: Learner
    describe: Callable[[DataProtoRef], dict[str, float]]
    """The metrics of a rollout by itself."""
    siblings_share: str | None = None
    """Object column that is equal for siblings; unset, the rows of each prompt are adjacent."""
    learns: bool = True
    """Whether it is trained; else it is only sampled and scored."""

    def add_rewards(self, rollout: DataProtoRef, rollouts: Rollouts) -> dict[str, float]:
        """What its scorer does."""
        return {} if self.scorer is None else self.scorer.add_rewards(rollout, rollouts)


class HeldOut(Protocol):
    """How held-out rows are played and judged."""

    @property
    def scores(self) -> tuple[str, ...]:
        """Columns of `play`, besides the reward, whose means belong into the evaluation."""
        ...

    def play(self, prompts: DataProto, max_new_tokens: int) -> DataProtoRef:
        """One greedy row per prompt, in order."""
        ...


class References(Protocol):
    """What the model before training says of rows, where scores compare with that."""

    def prepare(self, *rows: Sequence[dict[str, Any]]) -> None:
        """What only the model before training can do; called once, before a load."""
        ...

    def added_to(self, rows: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """The rows with what it says of them."""
        ...


@dataclass
class Wiring:
    """The parts of a trainer, as its domain placed them."""

    tracks: tuple[Track, ...]
    """In the order in which they are sampled, each after the one it is made from; all are scored in
    the reverse order, since a row may earn what its children do.
    """
    held_out: HeldOut
    policies: dict[str, Remote]
    """The FSDPBackend of each trained model, by its name in checkpoints."""
    exported: dict[str, Remote]
    """The FSDPBackend of each model that is registered, by its folder in it ("": itself)."""
    with_notes: list[Remote]
    """Whose `notes()` say what is computed otherwise than usual."""
    joint_stack: Remote | None = None
    """What trains all tracks in one optimiser step; unset, each track's own stack trains it."""
    references: References | None = None


def prompt_batch(items: Sequence[dict[str, Any]]) -> DataProto:
    """Prompts as a batch with the one object column `item`."""
    return DataProto.from_dict(non_tensors={"item": list(items)})
