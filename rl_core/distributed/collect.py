"""Collection of the answers of several ranks into one, never silently that of rank 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, Self, TypeGuard, cast, runtime_checkable

from rl_core.algorithms.metrics import Metric, merge, merge_all
from rl_core.data_proto import DataProtoError, MetaInfo
from rl_core.data_proto.compare import same
from rl_core.data_proto.merge import META_TOLERANCE
from rl_core.ranks.dispatch import NUM_PADDING_ROWS, CallSpec, Collect

METRICS = "metrics"
"""Key of `meta_info` with a DataProto's Metrics by name; joined answers have them reduced."""


def collect(spec: CallSpec, answers: Sequence[object]) -> object:
    """Return the caller's result; batches are joined by `refs.DataProtoRef`.

    Args: answers: in shard order. Raises: TypeError when the answers are not what `spec` says.
    """
    if spec.collect is Collect.RANK_ZERO:
        if is_metrics(answers[0]):
            raise TypeError(
                "a metric of rank 0 alone is not the metric of the call; use collect=Collect.REDUCE"
            )
        return answers[0]
    if spec.collect is Collect.REDUCE:
        return reduce_metrics(answers)
    return list(answers)


def is_metrics(answer: object) -> bool:
    """Return True if an answer is a metric or a non-empty mapping of metrics."""
    return isinstance(answer, Metric) or (
        isinstance(answer, Mapping) and bool(answer) and _holds_metrics(answer)
    )


def _holds_metrics(answer: Mapping[str, object]) -> TypeGuard[Mapping[str, Metric]]:
    return all(isinstance(value, Metric) for value in answer.values())


@runtime_checkable
class Mergeable(Protocol):
    """An answer whose class makes one out of those of several ranks."""

    @classmethod
    def merge(cls, parts: Sequence[Self]) -> Self:
        """Args: parts: in rank order."""
        ...


def reduce_metrics(answers: Sequence[object]) -> object:
    """Reduce metrics, mappings of metrics, or objects of a class with a `merge` classmethod to one.
    Raises: TypeError."""
    first = answers[0]
    metrics = [answer for answer in answers if isinstance(answer, Metric)]
    if len(metrics) == len(answers):
        return merge(metrics)
    tables = []
    for answer in answers:
        if isinstance(answer, Mapping) and _holds_metrics(answer):
            tables.append(answer)
    if len(tables) == len(answers):
        return merge_all(tables)
    if isinstance(first, Mergeable):
        return type(first).merge(cast("Sequence[Mergeable]", answers))
    raise TypeError(
        f"collect=REDUCE cannot reduce {type(first).__name__}: answer with a Metric, a mapping "
        "of Metrics, or a class that has `merge(parts)`"
    )


def real_rows(lengths: Sequence[int], num_rows: int | None) -> int:
    """Return the rows of the joined answer that do not stem from copies, given the `lengths` of the
    shards' answers.

    Raises: DataProtoError when copies cannot be told from rows, as shards were not answered with a
    multiple of rows.
    """
    total = sum(lengths)
    if num_rows is None or num_rows % len(lengths) == 0:
        return total
    shard_size = -(-num_rows // len(lengths))
    if len(set(lengths)) > 1 or lengths[0] % shard_size:
        raise DataProtoError(
            f"{num_rows} rows were filled up to {len(lengths)} shards of {shard_size}, and "
            f"answered with {list(lengths)} rows: which stem from copies is unknown; answer with "
            "a multiple of the shard's rows"
        )
    return num_rows * (lengths[0] // shard_size)


def join_meta(parts: Sequence[MetaInfo]) -> MetaInfo:
    """Join the metadata of all answers: `metrics` are reduced, all else must be equal. Raises:
    DataProtoError where it differs."""
    joined: MetaInfo = {}
    for rank, part in enumerate(parts):
        for key, value in part.items():
            if key in (METRICS, NUM_PADDING_ROWS):
                continue
            if key in joined and not same(joined[key], value, tolerance=META_TOLERANCE):
                raise DataProtoError(
                    f"meta_info[{key!r}] differs between ranks: {joined[key]!r}, and {value!r} "
                    f"of shard {rank}; put what belongs to a rank under {METRICS!r}, as Metrics"
                )
            joined[key] = value
    metrics = [part[METRICS] for part in parts if METRICS in part]
    return joined | ({METRICS: merge_all(metrics)} if metrics else {})
