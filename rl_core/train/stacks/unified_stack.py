"""The train stack of a unified model: the losses of all its stages in one optimizer step.

Each stage keeps its own algorithm, anchors, denominators and micro-batches; a step sums the
gradients of the stages' losses on the one module they share, g = sum over stages of w_s g_s. Stages
run one after the other, so that only one kind of activations is held at a time, and the gradient of
each can be measured, and clipped, separately: that of drawing is much weaker in the decoder than
that of its own tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from rl_core.algorithms.metrics import Metric
from rl_core.data_proto import DataProto
from rl_core.ranks.dispatch import Collect, Dispatch, distributed
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.gradients import clip_gradients
from rl_core.train.micro_batches import MiniBatch
from rl_core.train.result import TrainStepResult, UpdateResult
from rl_core.train.stacks.segments import SegmentStack


@dataclass(frozen=True)
class StageWeight:
    """Weight of a stage's loss in a step."""

    weight: float
    """Factor of the stage's loss."""
    max_grad_norm: float | None = None
    """Global norm to which the stage's weighted gradient is clipped before it is added; None does
    not clip it."""


@dataclass(frozen=True)
class UnifiedStepResult:
    """Result of training on one rollout, stage by stage; the same on every rank except for the
    stages' metrics."""

    stages: Mapping[str, TrainStepResult]
    """Results by stage. A stage's `grad_norm` is that of its own weighted gradient, before any
    clipping."""
    grad_norms: tuple[float, ...]
    """Norm of the sum of all stages' gradients in each optimizer step, before the last clipping."""

    @classmethod
    def merge(cls, parts: list[UnifiedStepResult]) -> UnifiedStepResult:
        """Return the result over all replicas."""
        first = parts[0]
        stages = {}
        for name in first.stages:
            stages[name] = TrainStepResult.merge([part.stages[name] for part in parts])
        return replace(first, stages=stages)

    def to_floats(self) -> dict[str, dict[str, float]]:
        """Return the numbers to log, by stage and name; `joint_grad_norm` is the same for all."""
        taken = [norm for norm in self.grad_norms if math.isfinite(norm)]
        joint = math.fsum(taken) / len(taken) if taken else math.nan
        floats: dict[str, dict[str, float]] = {}
        for name, stage in self.stages.items():
            floats[name] = stage.to_floats() | {"joint_grad_norm": joint}
        return floats


@dataclass
class _Segment:
    """Training data and plan of a stage in this step."""

    stack: SegmentStack
    share: StageWeight
    shard: DataProto
    plan: list[MiniBatch]
    metrics: list[dict[str, Metric]]
    updates: list[UpdateResult]


class UnifiedStack:
    """Runs the stages' mini-batches on one rank, with one optimizer step for all of them.

    Args: text, images: the stages' stacks, all over `fsdp_backend` and with the same number of
    mini-batches and epochs. weights: weights by stage.
    """

    def __init__(
        self,
        fsdp_backend: FSDPBackend,
        text: SegmentStack,
        images: SegmentStack,
        weights: Mapping[str, StageWeight],
    ) -> None:
        self.backend, self.weights = fsdp_backend, weights
        self.stages: dict[str, SegmentStack] = {"text": text, "images": images}
        self._shards: dict[str, DataProto] = {}

    @distributed(Dispatch.DP_SCATTER)
    def receive(self, shard: DataProto, stage: str) -> None:
        """Keep a stage's shard of the rollout until `train`. Raises: KeyError on an unknown
        stage."""
        self.weights[stage]
        self._shards[stage] = shard

    @distributed(collect=Collect.REDUCE)
    def train(self) -> UnifiedStepResult:
        """Train on the shards that were received, which are then dropped. Raises: ValueError when
        there are none."""
        if not self._shards:
            raise ValueError(
                "nothing to train on: hand over a shard of at least one stage with receive() first"
            )
        segments = {name: self._open(name, shard) for name, shard in self._shards.items()}
        self._shards = {}
        first = next(iter(segments.values())).stack
        grad_norms = []
        for _ in range(first.num_epochs):
            for index in range(first.num_updates_per_batch):
                grad_norms.append(self._update(list(segments.values()), index))
        stages = {}
        for name, one in segments.items():
            stages[name] = TrainStepResult.of(
                one.updates, one.metrics, (one.stack.first_log_probs,)
            )
        return UnifiedStepResult(stages, tuple(grad_norms))

    def _open(self, name: str, shard: DataProto) -> _Segment:
        """Open a stage's shard; the anchors of every stage are taken before the first step of
        any."""
        stack = self.stages[name]
        return _Segment(stack, self.weights[name], *stack.open(shard), [], [])

    def _update(self, segments: list[_Segment], index: int) -> float:
        """Take one optimizer step over every stage's mini-batch of this index. Returns: the joint
        gradient norm."""
        shares, norms, total = [], [], _Gradients(self.backend)
        for segment in segments:
            mini_batch = segment.plan[index]
            share = segment.share
            empty = mini_batch.is_empty
            if empty:
                loss = 0.0
            else:
                loss = segment.stack.accumulate(
                    segment.shard, mini_batch, segment.metrics, share.weight
                )
            shares.append(loss)
            norms.append(math.nan if empty else total.add(share.max_grad_norm))
        total.restore()
        if all(segment.plan[index].is_empty for segment in segments):
            step = {
                "grad_norm": math.nan,
                "lr": self.backend.optimizer.param_groups[0]["lr"],
                "skipped": 1.0,
            }
        else:
            step = self.backend.optimizer_step(segments[0].stack.max_grad_norm)
        losses = self.backend.all_reduce_sum(shares)
        for segment, loss, norm in zip(segments, losses, norms, strict=True):
            segment.updates.append(_result(segment.plan[index], loss, norm, step))
        return step["grad_norm"]


class _Gradients:
    """Gradients of finished stages, kept while the next one computes its own."""

    def __init__(self, backend: FSDPBackend) -> None:
        self.parameters, self.device = list(backend.trainable.values()), backend.device
        self.kept: dict[int, Tensor] = {}

    def add(self, max_norm: float | None) -> float:
        """Take the parameters' gradients, clipped to `max_norm`. Returns: their global norm
        before."""
        norm = clip_gradients(
            self.parameters, math.inf if max_norm is None else max_norm, self.device
        )
        for place, parameter in enumerate(self.parameters):
            if parameter.grad is not None:
                known = self.kept.get(place)
                self.kept[place] = parameter.grad if known is None else known.add_(parameter.grad)
                parameter.grad = None
        return norm

    def restore(self) -> None:
        """Put the sum into the parameters' gradients."""
        for place, gradient in self.kept.items():
            self.parameters[place].grad = gradient


def _result(
    mini_batch: MiniBatch, loss: float, norm: float, step: Mapping[str, float]
) -> UpdateResult:
    empty = mini_batch.is_empty
    return UpdateResult(
        loss=math.nan if empty else loss,
        grad_norm=norm,
        lr=step["lr"],
        skipped=empty or bool(step["skipped"]),
        num_tokens=int(mini_batch.denominators.num_tokens),
    )
