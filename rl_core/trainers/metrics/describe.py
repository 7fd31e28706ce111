"""Metrics that are computed from a rollout alone, for each kind of row."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rl_core.algorithms.metrics import to_floats
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.models.decoding.request import StopReason
from rl_core.trainers.metrics.env_metrics import environment_metrics

UNFINISHED = ("given_up_groups", "given_up_tokens", "carried_groups", "carried_tokens")


def describe_replies(
    rollout: DataProtoRef, environments: Mapping[str, Mapping[str, object]]
) -> dict[str, float]:
    """Return the metrics of token episodes and their environments. Args: environments: the
    recipe's."""
    counted = to_floats(rollout.meta_info.get("metrics", {}))
    unfinished = {name: counted[name] for name in UNFINISHED if name in counted}
    return rollout_metrics(rollout) | environment_metrics(rollout, environments) | unfinished


def describe_samples(rollout: DataProtoRef) -> dict[str, float]:
    """Return the reward metrics of pictures or videos, over the rows that did not fail."""
    rewards_B = rollout.tensor("rewards")[~rollout.tensor("failed")]
    return {
        "reward_mean": float(rewards_B.mean()),
        "reward_std": float(rewards_B.std(correction=0)),
    }


def describe_pairs(rollout: DataProtoRef) -> dict[str, float]:
    """Return the answer lengths of preference pairs, and the counts of pairs that teach nothing."""
    lengths_B = rollout.tensor("num_tokens").float()
    reasons = list(rollout.non_tensor_batch["stop_reason"][::2])
    return {
        "answer_length_mean": float(lengths_B.mean()),
        "answer_length_max": float(lengths_B.max()),
        "overlong_pairs": float(reasons.count("length")),
        "equal_pairs": float(reasons.count("equal")),
    }


def describe_answers(rollout: DataProtoRef) -> dict[str, float]:
    """Return the lengths of given answers, and the count of rows that are too long to train."""
    lengths_B = rollout.tensor("num_tokens").float()
    reasons = list(rollout.non_tensor_batch["stop_reason"])
    return {
        "answer_length_mean": float(lengths_B.mean()),
        "answer_length_max": float(lengths_B.max()),
        "taught_tokens": float(lengths_B.sum()),
        "overlong_rows": float(reasons.count("length")),
    }


def rollout_metrics(rollout: DataProto | DataProtoRef) -> dict[str, float]:
    """Return reward, length and turn metrics over the rows that did not fail; NaN if all failed."""
    good_B = ~rollout.tensor("failed")
    rewards_B = rollout.tensor("rewards")[good_B]
    lengths_B = rollout.tensor("num_tokens")[good_B].float()
    truncated = []
    for reason in rollout.non_tensor_batch["stop_reason"]:
        truncated.append(StopReason(reason).is_truncated)
    return {
        "reward_mean": float(rewards_B.mean()),
        "reward_std": float(rewards_B.std(correction=0)),
        "response_length_mean": float(lengths_B.mean()),
        "response_length_max": float(lengths_B.max()),
        "truncated_share": float(torch.tensor(truncated)[good_B].float().mean()),
        "turns_mean": float(rollout.tensor("num_turns")[good_B].float().mean()),
    }
