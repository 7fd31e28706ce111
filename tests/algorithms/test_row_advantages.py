"""Advantages from numbers of rows alone are those of the whole batch."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.algorithms.advantages import (
    AdvantageInputs,
    RowEstimator,
    RowNumbers,
    advantage_estimators,
    over_actions,
)
from rl_core.algorithms.advantages.groups import Groups
from rl_core.algorithms.advantages.grpo import GrpoAdvantage
from rl_core.algorithms.advantages.scaling import whiten, whiten_rows
from tests.algorithms.test_advantages import B, T, ids, random_batch

NEED_ACTIONS = {"gae", "reinforce_plus_plus", "optimal_token_baseline"}
"""Estimators whose advantages differ along a row."""


def numbers_of(batch: AdvantageInputs) -> RowNumbers:
    """The numbers of rows of a batch, whose lengths are counted apart."""
    lengths = [sum(value != 0 for value in row) for row in batch.mask_BT.tolist()]
    return RowNumbers(
        batch.rewards_B,
        batch.group_ids_B,
        torch.tensor(lengths),
        batch.greedy_rewards_B,
        batch.rewards_by_key,
    )


@ids
@pytest.mark.parametrize("clamp", [None, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_numbers_of_rows_give_the_advantages_of_actions_to_the_bit(
    block: dict[str, Any], clamp: float | None, dtype: torch.dtype
):
    # Masks with gaps, a row without actions, groups of one, of equal rewards and of many rows.
    for seed in range(3):
        batch = random_batch(seed)
        batch.group_ids_B[7] = 99
        given = AdvantageInputs(**{**vars(batch), "rewards_B": batch.rewards_B.to(dtype)})
        cls, config = advantage_estimators.resolve(block | {"clamp": clamp}, "algorithm.advantage")
        estimator = cls(config)
        found = estimator.of_rows(numbers_of(given))
        assert (found is None) == (block["name"] in NEED_ACTIONS)
        if found is None:
            continue
        expected_BT, metrics = estimator(given)
        assert found[0].dtype == expected_BT.dtype and found[1] == metrics
        assert torch.equal(over_actions(given.mask_BT, found[0][:, None]), expected_BT)


def test_rows_are_whitened_as_their_actions_are():
    batch = random_batch(2)
    values_B = torch.randn(B, dtype=torch.float64)
    for unbiased in (True, False):
        by_action_BT = whiten(
            values_B[:, None].expand(B, T), batch.mask_BT, unbiased=unbiased, eps=0.0
        )
        by_row_B = whiten_rows(values_B, batch.mask_BT.sum(1), unbiased=unbiased, eps=0.0)
        torch.testing.assert_close(over_actions(batch.mask_BT, by_row_B[:, None]), by_action_BT)


class ByLength(RowEstimator):
    """Somebody's estimator, which reads the mask."""

    def per_row(self, inputs: AdvantageInputs, groups: Groups) -> Tensor:
        return (inputs.mask_BT != 0).sum(1).double()


class LongGrpo(GrpoAdvantage):
    """Somebody's change of one of ours, which reads the mask."""

    def per_row(self, inputs: Any, groups: Groups) -> Tensor:
        return super().per_row(inputs, groups) * (inputs.mask_BT != 0).sum(1)


class Renamed(GrpoAdvantage):
    """Somebody's copy of one of ours, which computes nothing anew."""


class TwiceGrpo(GrpoAdvantage):
    """Somebody's change of one of ours, which says that it reads rows alone."""

    reads_rows_alone = True

    def per_row(self, inputs: Any, groups: Groups) -> Tensor:
        return 2 * super().per_row(inputs, groups)


@pytest.mark.parametrize(
    ("cls", "reads_rows"),
    [(ByLength, False), (LongGrpo, False), (Renamed, True), (TwiceGrpo, True)],
)
def test_an_estimator_of_ones_own_gets_the_mask_unless_it_says_otherwise(
    cls: type[RowEstimator], reads_rows: bool
):
    batch = random_batch(1)
    estimator = cls(cls.Config())
    assert estimator(batch)[0].shape == (B, T)
    assert (estimator.of_rows(numbers_of(batch)) is not None) == reads_rows
