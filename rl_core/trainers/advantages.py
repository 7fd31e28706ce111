"""Advantages of a rollout, computed by an algorithm over the rows that did not fail."""

from __future__ import annotations

import torch

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.metrics import to_floats
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.envs.faults import no_verdicts
from rl_core.rollout.sample_ids import named_error
from rl_core.trainers.measures import row_measures


def add_advantages(
    algorithm: StageAlgorithm,
    rollout: DataProto | DataProtoRef,
    group_ids_B: torch.Tensor,
) -> dict[str, float]:
    """Put `advantages` [B, T] into the rollout, in place; they are zero in failed rows.

    Args: group_ids_B: [B] integers, equal within a group.

    If the rollout has them, the algorithm also gets the rewards by position (`turn_rewards`), the
    parts of the reward (`reward/<key>`) and the columns in `MEASURED`. With a critic, `returns` [B,
    T] are added too. Raises: RewardError when every row failed, with the first reason; BrokenCode
    when the user's code raised an error of its own in each.
    """
    failed_B = rollout.tensor("failed")
    good_B = ~failed_B
    mask_BT = rollout.tensor("response_mask")
    if not bool(good_B.any()):
        first = named_error(rollout, 0)
        reasons = [str(reason) for reason in rollout.non_tensor_batch["error"]]
        raise no_verdicts(f"every row of the rollout is without a verdict; first: {first}", reasons)
    rows = rollout.tensor("rewards")[good_B], group_ids_B[good_B], mask_BT[good_B]
    measured = row_measures(rollout, good_B)
    columns = {"advantages": torch.zeros(mask_BT.shape)}
    columns["advantages"][good_B], metrics = algorithm.advantages(*rows, **measured)
    if algorithm.needs_critic:
        columns["returns"] = torch.zeros(mask_BT.shape)
        columns["returns"][good_B] = algorithm.returns(*rows, **measured)
    rollout.union(DataProto.from_dict(columns))
    taught_B = (columns["advantages"][good_B] != 0).any(1)
    counts = {
        "failed_rows": float(failed_B.sum()),
        "zero_advantage_share": 1.0 - float(taught_B.double().mean()),
    }
    return to_floats(metrics) | counts
