"""The advantages of a rollout, by an algorithm, over the rows that have a verdict."""

from __future__ import annotations

import torch

from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.metrics import to_floats
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.errors import RewardError
from rl_core.trainers.measures import row_measures


def add_advantages(
    algorithm: StageAlgorithm,
    rollout: DataProto | DataProtoRef,
    group_ids_B: torch.Tensor,
) -> dict[str, float]:
    """Put `advantages` [B, T] into the rollout, in place. Rows without a verdict take no part.

    Args: group_ids_B: [B] integers, equal for siblings.

    An algorithm also gets where in the row each part of the reward was earned (`turn_rewards`),
    what the reward is made of (`reward/<key>`) and `MEASURED`, where the rollout says so. With a
    critic there are also its `returns` [B, T].
    Raises: RewardError when every row failed, with the first reason.
    """
    failed_B = rollout.tensor("failed")
    good_B = ~failed_B
    mask_BT = rollout.tensor("response_mask")
    if not bool(good_B.any()):
        first = rollout.non_tensor_batch["error"][0]
        raise RewardError(f"every row of the rollout is without a verdict; first: {first}")
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
