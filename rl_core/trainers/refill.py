"""Dynamic sampling (DAPO, arXiv 2503.14476 sec. 3.2): groups whose rewards are all equal are
replaced by fresh prompts.

If nothing is replaced, rows stay on the ranks that made them. Otherwise the driver puts the step's
batch together from whole groups, in the order in which they were sampled.
"""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from rl_core.algorithms.shaping import informative_rows
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.trainers.step_record import Portion


class Refill:
    """Groups of one step, collected over rollouts until enough of them have differing rewards."""

    def __init__(self, num_groups: int, group_size: int) -> None:
        self.num_groups, self.group_size = num_groups, group_size
        self.rollouts: list[tuple[DataProto | DataProtoRef, list[int]]] = []
        self.num_flat = self.num_surplus = self.num_tokens = 0

    def add(self, rollout: DataProto | DataProtoRef) -> None:
        """Take the groups that are still missing from a rollout with rewards."""
        useful = informative_groups(rollout, self.group_size)
        chosen = useful[: self.num_missing]
        self.num_flat += len(rollout) // self.group_size - len(useful)
        self.num_surplus += len(useful) - len(chosen)
        self.num_tokens += int(rollout.tensor("num_tokens").sum())
        self.rollouts.append((rollout, chosen))

    @property
    def num_missing(self) -> int:
        """Number of groups that are still missing."""
        return self.num_groups - sum(len(chosen) for _, chosen in self.rollouts)

    def batch(self) -> DataProto | DataProtoRef:
        """Return the groups to train on; the first rollout unchanged if all or none of its groups
        are useful."""
        first = self.rollouts[0][0]
        if self.num_missing == self.num_groups or len(self.rollouts[0][1]) * self.group_size == len(
            first
        ):
            return first
        return joined(
            [
                groups_of(rollout, chosen, self.group_size)
                for rollout, chosen in self.rollouts
                if chosen
            ]
        )

    def left_out(self, batch: DataProto | DataProtoRef) -> list[Portion]:
        """Return the rows that were sampled and are not in the batch to train on."""
        first = self.rollouts[0][0]
        portions = []
        for rollout, chosen in self.rollouts:
            if batch is first and rollout is first:
                continue
            kept = () if batch is first else chosen
            groups = sorted(set(range(len(rollout) // self.group_size)) - set(kept))
            if groups:
                rows = tuple(rows_of(groups, self.group_size))
                portions.append(Portion(rollout, rows, trained=False))
        return portions

    def metrics(self) -> dict[str, float]:
        """Return the counts of this step."""
        return {
            "dynamic/extra_rollouts": float(len(self.rollouts) - 1),
            "dynamic/flat_groups": float(self.num_flat),
            "dynamic/surplus_groups": float(self.num_surplus),
            "dynamic/missing_groups": float(self.num_missing),
        }


def informative_groups(rollout: DataProto | DataProtoRef, group_size: int) -> list[int]:
    """Return the numbers of the groups whose rewards differ, among rows that did not fail."""
    good_B = ~rollout.tensor("failed")
    group_ids_B = torch.arange(len(rollout)) // group_size
    if not bool(good_B.any()):
        return []
    useful_B = informative_rows(rollout.tensor("rewards")[good_B], group_ids_B[good_B])
    return group_ids_B[good_B][useful_B].unique().tolist()


def groups_of(rollout: DataProto | DataProtoRef, groups: list[int], group_size: int) -> DataProto:
    """Return the rows of some groups, in this process."""
    rows = rows_of(groups, group_size)
    return (rollout.fetch() if isinstance(rollout, DataProtoRef) else rollout)[rows]


def rows_of(groups: list[int], group_size: int) -> list[int]:
    """Return the numbers of the rows of some groups."""
    return [group * group_size + sibling for group in groups for sibling in range(group_size)]


def joined(batches: list[DataProto]) -> DataProto:
    """Concatenate the rows of several rollouts: prompts are padded on the left, replies on the
    right, with masks of 0."""
    response_width = max(batch.tensor("response_mask").shape[1] for batch in batches)
    prompt_width = max(_prompt_width(batch) for batch in batches)
    return DataProto.concat([_widened(batch, prompt_width, response_width) for batch in batches])


def _prompt_width(batch: DataProto) -> int:
    return batch.tensor("input_ids").shape[1] - batch.tensor("response_mask").shape[1]


def _widened(batch: DataProto, prompt_width: int, response_width: int) -> DataProto:
    assert batch.batch is not None
    old_response = batch.tensor("response_mask").shape[1]
    left, right = prompt_width - _prompt_width(batch), response_width - old_response
    tensors: dict[str, torch.Tensor] = {}
    for key, value in batch.batch.items():
        if value.dim() == 2 and value.shape[1] == batch.tensor("input_ids").shape[1]:
            tensors[str(key)] = pad(value, (left, right))
        elif value.dim() == 2 and value.shape[1] == old_response:
            tensors[str(key)] = pad(value, (0, right))
        else:
            tensors[str(key)] = value
    return DataProto.from_dict(tensors, batch.non_tensor_batch)
