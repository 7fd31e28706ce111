"""Advantages of a rollout, computed by an algorithm over the rows that did not fail.

An algorithm whose rows have one advantage each is given numbers of rows, and its answer goes to the
ranks as a number a row, which is put over the actions where the rows are read. Any other algorithm
gets the mask and the measures by action, which the driver fetches.
"""

from __future__ import annotations

import torch

from rl_core.algorithms.advantages import over_actions
from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.metrics import Metric, to_floats
from rl_core.algorithms.redefined import redefines
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.distributed.layers import Derived
from rl_core.envs.faults import no_verdicts
from rl_core.ranks.dispatch import MASK
from rl_core.rollout.sample_ids import named_error
from rl_core.trainers.masking import derive, num_actions
from rl_core.trainers.measures import row_measures, row_parts

TAUGHT = "taught"
"""Column of a rollout to train on: True for rows with an advantage other than 0, [B]."""


def add_advantages(
    algorithm: StageAlgorithm,
    rollout: DataProto | DataProtoRef,
    group_ids_B: torch.Tensor,
) -> dict[str, float]:
    """Put `advantages` [B, T] and `taught` [B] into the rollout, in place; they are zero in failed
    rows.

    Args: group_ids_B: [B] integers, equal within a group.

    If the rollout has them, the algorithm also gets the parts of the reward (`reward/<key>`) and,
    unless it has one advantage a row, the rewards by position (`turn_rewards`) and the columns in
    `MEASURED`. With a critic, `returns` [B, T] are added too. Raises: RewardError when every row
    failed, with the first reason; BrokenCode when the user's code raised an error of its own in
    each.
    """
    failed_B = rollout.tensor("failed")
    good_B = ~failed_B
    if not bool(good_B.any()):
        first = named_error(rollout, 0)
        reasons = [str(reason) for reason in rollout.non_tensor_batch["error"]]
        raise no_verdicts(f"every row of the rollout is without a verdict; first: {first}", reasons)
    # A batch without failed rows is not copied: with many ranks the driver holds all of their rows.
    kept: slice | torch.Tensor = slice(None) if bool(good_B.all()) else good_B
    found = _add_by_row(algorithm, rollout, group_ids_B, kept)
    taught_B, metrics = found or _add_by_action(algorithm, rollout, group_ids_B, kept)
    rollout.union(DataProto.from_dict({TAUGHT: taught_B}))
    counts = {
        "failed_rows": float(failed_B.sum()),
        "zero_advantage_share": 1.0 - float(taught_B[kept].double().mean()),
    }
    return to_floats(metrics) | counts


def _add_by_row(
    algorithm: StageAlgorithm,
    rollout: DataProto | DataProtoRef,
    group_ids_B: torch.Tensor,
    kept: slice | torch.Tensor,
) -> tuple[torch.Tensor, dict[str, Metric]] | None:
    """Add the advantages of an algorithm whose rows have one each; None for any other.

    Returns: True for rows with an advantage, [B], and metrics.
    """
    if algorithm.needs_critic or redefines(type(algorithm), "row_advantages", "advantages"):
        return None
    lengths_B = num_actions(rollout)
    rows = rollout.tensor("rewards")[kept], group_ids_B[kept], lengths_B[kept]
    found = algorithm.row_advantages(*rows, **row_parts(rollout, kept))
    if found is None:
        return None
    advantages_B = torch.zeros(len(rollout))
    advantages_B[kept] = found[0].float()
    derive(rollout, Derived("advantages", (MASK,), over_actions, (advantages_B[:, None],)))
    return (advantages_B != 0) & (lengths_B > 0), found[1]


def _add_by_action(
    algorithm: StageAlgorithm,
    rollout: DataProto | DataProtoRef,
    group_ids_B: torch.Tensor,
    kept: slice | torch.Tensor,
) -> tuple[torch.Tensor, dict[str, Metric]]:
    """Add the advantages of any algorithm, and the targets of a critic.

    Returns: True for rows with an advantage, [B], and metrics.
    """
    mask_BT = rollout.tensor(MASK)
    rows = rollout.tensor("rewards")[kept], group_ids_B[kept], mask_BT[kept]
    measured = row_measures(rollout, kept)
    good_BT, metrics = algorithm.advantages(*rows, **measured)
    taught_B = torch.zeros(len(rollout), dtype=torch.bool)
    taught_B[kept] = good_BT.any(1)
    columns = {"advantages": _of_all_rows(good_BT, kept, mask_BT)}
    del good_BT
    if algorithm.needs_critic:
        columns["returns"] = _of_all_rows(algorithm.returns(*rows, **measured), kept, mask_BT)
    rollout.union(DataProto.from_dict(columns))
    return taught_B, metrics


def _of_all_rows(
    good_BT: torch.Tensor, kept: slice | torch.Tensor, mask_BT: torch.Tensor
) -> torch.Tensor:
    """Return float32 values [B, T] from those of the good rows; zero in the others."""
    if isinstance(kept, slice):
        return good_BT.float()
    all_BT = torch.zeros(mask_BT.shape)
    all_BT[kept] = good_BT.float()
    return all_BT
