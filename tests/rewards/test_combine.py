"""The reward that is trained on, worked by hand: environment, scorers, cut-off replies, rows
without a score."""

import math

import pytest
import torch

from rl_core.algorithms.advantages.base import AdvantageInputs
from rl_core.rewards.combine import Earned, combine, score_metrics
from schemas.sections.rewards import RewardServiceConfig, Truncation

NAN = math.nan
EARNED = Earned(
    rewards_B=torch.tensor([1.0, 0.5, 0.0, 0.0]),
    lengths_B=torch.tensor([3, 2, 2, 0]),
    truncated_B=torch.tensor([False, True, False, False]),
    failed_B=torch.tensor([False, False, False, True]),
)
SCORES = torch.tensor([[1.0, 4.0], [0.0, NAN], [NAN, 2.0], [NAN, NAN]])


def combined(
    truncated: Truncation = Truncation.KEEP,
    weights: tuple[float, float] = (2.0, 0.0),
    max_length: int = 4,
):
    config = RewardServiceConfig(truncated=truncated, overlong_buffer=2, overlong_penalty=0.8)
    return combine(EARNED, SCORES, dict(zip(("a", "b"), weights, strict=True)), config, max_length)


def test_weighted_scores_are_added():
    found = combined()
    assert found.rewards_B.tolist() == [3.0, 0.5, 0.0, 0.0]
    assert found.added_B.tolist() == [2.0, 0.0, 0.0, 0.0]
    assert not found.dropped_B.any()
    assert {key: part.tolist() for key, part in found.parts.items()} == {
        "environment": [1.0, 0.5, 0.0, 0.0],
        "a": [2.0, 0.0, 0.0, 0.0],
    }


def test_rows_lack_a_score_only_where_it_counts_and_they_have_a_verdict():
    assert combined().unscored_B.tolist() == [False, False, True, False]
    assert combined(weights=(2.0, 1.0)).unscored_B.tolist() == [False, True, True, False]
    assert combined(weights=(0.0, 0.0)).unscored_B.tolist() == [False] * 4


def test_cut_off_replies_get_zero():
    found = combined(Truncation.ZERO)
    assert found.rewards_B.tolist() == [3.0, 0.0, 0.0, 0.0]
    assert found.dropped_B.tolist() == [False, True, False, False]
    assert found.parts["environment"].tolist() == [1.0, 0.0, 0.0, 0.0]


def test_the_soft_penalty_sets_in_before_the_limit_and_is_whole_for_a_cut_off_reply():
    found = combined(Truncation.SOFT)
    # Lengths 3 and 2 of 4 with a buffer of 2: half of the penalty, and none; the cut-off row pays
    # all of it.
    assert found.rewards_B.tolist() == pytest.approx([3.0 - 0.4, 0.5 - 0.8, 0.0, 0.0])
    assert found.added_B.tolist() == pytest.approx([2.0 - 0.4, -0.8, 0.0, 0.0])
    assert not found.dropped_B.any()


def test_metrics_count_what_has_no_score_and_average_the_rest():
    metrics = score_metrics(SCORES, ["a", "b"], EARNED)
    assert metrics["reward/environment/mean"] == pytest.approx(0.5)
    assert (metrics["reward/a/mean"], metrics["reward/a/std"], metrics["reward/a/failed"]) == (
        0.5,
        0.5,
        1.0,
    )
    assert (metrics["reward/b/mean"], metrics["reward/b/failed"]) == (3.0, 1.0)
    assert metrics["reward/environment/failed"] == 1.0


def test_an_algorithm_with_a_return_per_action_sees_when_a_turn_was_paid():
    rewards_BT = torch.tensor([[1.0, 0.0, 0.0, 0.5]])
    mask_BT = torch.tensor([[1, 0, 1, 1]])
    inputs = AdvantageInputs(torch.tensor([1.5]), torch.tensor([0]), mask_BT, rewards_BT=rewards_BT)
    assert inputs.action_rewards().tolist() == [[1.0, 0.0, 0.0, 0.5]]
    summed = AdvantageInputs(torch.tensor([1.5]), torch.tensor([0]), mask_BT)
    assert summed.action_rewards().tolist() == [[0.0, 0.0, 0.0, 1.5]]
    with pytest.raises(ValueError, match="rewards_BT has shape"):
        AdvantageInputs(
            torch.tensor([1.5]), torch.tensor([0]), mask_BT, rewards_BT=rewards_BT[:, :2]
        )
