"""The metrics of a rollout by itself, for each kind of row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.models.decoding.decode import StopReason
from rl_core.trainers.env_metrics import environment_metrics


def describe_replies(
    rollout: DataProtoRef, environments: Mapping[str, Mapping[str, Any]]
) -> dict[str, float]:
    """Of episodes of tokens. Args: environments: the recipe's."""
    return rollout_metrics(rollout) | environment_metrics(rollout, environments)


def describe_samples(rollout: DataProtoRef) -> dict[str, float]:
    """Of pictures or videos: the rewards, over the rows that have a verdict."""
    rewards_B = rollout.tensor("rewards")[~rollout.tensor("failed")]
    return {
        "reward_mean": float(rewards_B.mean()),
        "reward_std": float(rewards_B.std(correction=0)),
    }


def describe_pairs(rollout: DataProtoRef) -> dict[str, float]:
    """Of pairs of answers: their length, and pairs that teach nothing."""
    lengths_B = rollout.tensor("num_tokens").float()
    reasons = list(rollout.non_tensor_batch["stop_reason"][::2])
    return {
        "answer_length_mean": float(lengths_B.mean()),
        "answer_length_max": float(lengths_B.max()),
        "overlong_pairs": float(reasons.count("length")),
        "equal_pairs": float(reasons.count("equal")),
    }


def rollout_metrics(rollout: DataProto | DataProtoRef) -> dict[str, float]:
    """Reward, length and turns, over the rows that have a verdict; NaN where there are none."""
    good_B = ~rollout.tensor("failed")
    rewards_B = rollout.tensor("rewards")[good_B]
    lengths_B = rollout.tensor("num_tokens")[good_B].float()
    truncated = [
        StopReason(reason).is_truncated for reason in rollout.non_tensor_batch["stop_reason"]
    ]
    return {
        "reward_mean": float(rewards_B.mean()),
        "reward_std": float(rewards_B.std(correction=0)),
        "response_length_mean": float(lengths_B.mean()),
        "response_length_max": float(lengths_B.max()),
        "truncated_share": float(torch.tensor(truncated)[good_B].float().mean()),
        "turns_mean": float(rollout.tensor("num_turns")[good_B].float().mean()),
    }
