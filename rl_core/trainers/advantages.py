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
    # A batch without failed rows is not copied: with many ranks the driver holds all of their rows.
    kept: slice | torch.Tensor = slice(None) if bool(good_B.all()) else good_B
    rows = rollout.tensor("rewards")[kept], group_ids_B[kept], mask_BT[kept]
    measured = row_measures(rollout, kept)
    good_BT, metrics = algorithm.advantages(*rows, **measured)
    taught_B = good_BT.any(1)
    columns = {"advantages": _of_all_rows(good_BT, kept, mask_BT)}
    del good_BT
    if algorithm.needs_critic:
        columns["returns"] = _of_all_rows(algorithm.returns(*rows, **measured), kept, mask_BT)
    rollout.union(DataProto.from_dict(columns))
    counts = {
        "failed_rows": float(failed_B.sum()),
        "zero_advantage_share": 1.0 - float(taught_B.double().mean()),
    }
    return to_floats(metrics) | counts


def _of_all_rows(
    good_BT: torch.Tensor, kept: slice | torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """Return float32 values [B, T] from those of the good rows; zero in the others."""
    if isinstance(kept, slice):
        return good_BT.float()
    all_BT = torch.zeros(mask_BT.shape)
    all_BT[kept] = good_BT.float()
    return all_BT
