import pytest
import torch

from rl_core.algorithms.shaping import (
    curriculum_weights,
    informative_rows,
    soft_overlong_penalty,
    without_rows,
)
from rl_core.errors import RewardError


def test_overlong_penalty_by_hand() -> None:
    # Limit 10, buffer 4: free up to 6, then a quarter per token, 2 at the limit and beyond.
    penalties_B = soft_overlong_penalty(torch.tensor([1, 6, 7, 9, 10, 12]), 10, 4, penalty=2.0)
    assert penalties_B.tolist() == [0.0, 0.0, -0.5, -1.5, -2.0, -2.0]
    with pytest.raises(ValueError, match=r"1\.\.10"):
        soft_overlong_penalty(torch.tensor([1]), 10, 11)


def test_cut_off_rows_lose_their_actions() -> None:
    mask_BT = torch.tensor([[1, 1], [1, 0], [0, 1]])
    assert without_rows(mask_BT, torch.tensor([True, False, True])).tolist() == [
        [0, 0],
        [1, 0],
        [0, 0],
    ]
    assert mask_BT[0].tolist() == [1, 1]


def test_rows_of_flat_groups_are_to_be_replaced() -> None:
    rows_B = informative_rows(
        torch.tensor([1.0, 0.0, 1.0, 1.0, 0.5]), torch.tensor([3, 8, 3, 8, 5])
    )
    assert rows_B.tolist() == [False, True, False, True, False]
    with pytest.raises(RewardError):
        informative_rows(torch.tensor([float("nan")]), torch.tensor([0]))


def test_curriculum_prefers_prompts_that_are_sometimes_right() -> None:
    # Rates 1/2 (untried), 5/10 (4 of 8), 1/10, 9/10: weights 1, 1, 0.36, 0.36.
    weights_P = curriculum_weights(torch.tensor([0, 4, 0, 8]), torch.tensor([0, 8, 8, 8]))
    torch.testing.assert_close(weights_P, torch.tensor([1.0, 1.0, 0.36, 0.36]).double() / 2.72)
    hopeless_P = curriculum_weights(torch.tensor([0, 50]), torch.tensor([1000, 100]), floor=0.1)
    torch.testing.assert_close(hopeless_P, torch.tensor([0.1, 1.0]).double() / 1.1)
    with pytest.raises(ValueError, match="between 0 and"):
        curriculum_weights(torch.tensor([2]), torch.tensor([1]))
