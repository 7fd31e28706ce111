"""Metrics of a rollout's environments, and counts of their failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.envs.base import BaseTextEnv
from rl_core.envs.registration import spec
from rl_core.rollout.episodes.env_calls import EnvCall


def environment_metrics(
    rollout: DataProto | DataProtoRef, options: Mapping[str, Mapping[str, object]]
) -> dict[str, float]:
    """Return `env/<id>/<metric>`, aggregated by each environment's `aggregate_metrics`, and failure
    counts.

    Args: options: a recipe's `environments`. Returns: also `env_failures/<call>` for each kind of
    call, and `env_failures/timeout`, which those counts include.
    """
    objects = rollout.non_tensor_batch
    failed = Counter(call for call in objects["failed_call"] if call is not None)
    metrics = {f"env_failures/{call}": float(failed[str(call)]) for call in EnvCall}
    metrics["env_failures/timeout"] = float(sum(objects["timed_out"]))
    measured: dict[str, list[dict[str, float]]] = {}
    for env_id, numbers in zip(objects["env_class"], objects["env_metrics"], strict=True):
        if numbers:
            measured.setdefault(env_id, []).append(numbers)
    for env_id, rows in measured.items():
        cls = spec(env_id, options.get(env_id)).load()
        aggregate = getattr(cls, "aggregate_metrics", BaseTextEnv.aggregate_metrics)
        metrics |= {f"env/{env_id}/{name}": float(value) for name, value in aggregate(rows).items()}
    return metrics
