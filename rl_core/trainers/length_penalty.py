"""Changes to rewards before the advantages: the penalty of long replies, and the greedy
baseline."""

from __future__ import annotations

import torch

from rl_core.algorithms.shaping import OverlongConfig, soft_overlong_penalty
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.models.decoding.request import StopReason
from rl_core.trainers.masking import add_at_the_end, leave_out

GREEDY = "greedy_rewards"
"""Column with the reward of the greedy reply to each row's prompt."""


def shape_overlong(
    rollout: DataProtoRef, config: OverlongConfig | None, max_length: int
) -> dict[str, float]:
    """Subtract the penalty of long replies from `rewards` and `turn_rewards`, and mask truncated
    rows out of the loss, in place.

    A masked row keeps its reward, which counts in the mean of its group. Args: max_length: limit of
    one reply. Returns: metrics of the parts that are enabled.
    """
    metrics = {}
    if config is not None and config.buffer:
        lengths_B = rollout.tensor("last_reply_tokens")
        penalties_B = soft_overlong_penalty(
            lengths_B, max_length, config.buffer, config.penalty
        ).float()
        penalties_B = penalties_B.masked_fill(rollout.tensor("failed"), 0.0)
        rollout.replace(DataProto.from_dict({"rewards": rollout.tensor("rewards") + penalties_B}))
        add_at_the_end(rollout, penalties_B)
        metrics["overlong_penalty_mean"] = float(penalties_B.mean())
    if config is not None and config.filter:
        truncated_B = torch.tensor(
            [StopReason(reason).is_truncated for reason in rollout.non_tensor_batch["stop_reason"]]
        )
        leave_out(rollout, truncated_B)
        metrics["overlong_filtered_rows"] = float((truncated_B & ~rollout.tensor("failed")).sum())
    return metrics


def add_greedy_rewards(rollout: DataProtoRef, greedy: DataProtoRef) -> dict[str, float]:
    """Put `greedy_rewards` [B] into the rollout, in place. Rows whose greedy reply failed are
    masked out of the loss.

    Args: greedy: one row per prompt, in the order of the groups. Returns: metrics.
    """
    group_size = len(rollout) // len(greedy)
    failed_P, rewards_P = greedy.tensor("failed"), greedy.tensor("rewards")
    failed_B = failed_P.repeat_interleave(group_size)
    columns = {GREEDY: rewards_P.masked_fill(failed_P, 0.0).repeat_interleave(group_size)}
    objects = {}
    if bool(failed_B.any()):
        columns["failed"] = rollout.tensor("failed") | failed_B
        leave_out(rollout, failed_B)
        reasons = []
        for reason in greedy.non_tensor_batch["error"]:
            for _ in range(group_size):
                reasons.append(reason)
        known = rollout.non_tensor_batch["error"]
        objects["error"] = [one or other for one, other in zip(known, reasons, strict=True)]
    rollout.replace(DataProto.from_dict(columns, objects))
    return {"greedy_reward_mean": float(rewards_P[~failed_P].mean())}
