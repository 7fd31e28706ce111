import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.algorithms.advantages import StdScope, advantage_estimators, group_ids, grpo, rloo
from rl_core.errors import RecipeError, RewardError

REWARDS_B = torch.tensor([1.0, 5.0, 0.0, 5.0, 2.0, 7.0])
GROUPS_B = torch.tensor([4, 9, 4, 9, 4, 1])


def test_grpo_by_hand() -> None:
    # Group 4 holds 1, 0, 2: mean 1, sigma 1 over n - 1 and sqrt(2/3) over n. Group 9 is flat, group 1 has one row.
    unbiased_B, metrics = grpo(REWARDS_B, GROUPS_B, eps=0.0)
    assert unbiased_B.tolist() == [0.0, 0.0, -1.0, 0.0, 1.0, 0.0]
    population_B, _ = grpo(REWARDS_B, GROUPS_B, unbiased=False, eps=0.0)
    torch.testing.assert_close(population_B, torch.tensor([0.0, 0.0, -1.2247449, 0.0, 1.2247449, 0.0]))
    with_eps_B, _ = grpo(REWARDS_B, GROUPS_B, eps=1.0)
    assert with_eps_B.tolist() == [0.0, 0.0, -0.5, 0.0, 0.5, 0.0]
    assert metrics["zero_std_groups"].result() == 2 and metrics["num_groups"].result() == 3
    assert metrics["reward_mean"].result() == pytest.approx(20 / 6)


def test_dr_grpo_only_centres() -> None:
    rewards_B = torch.tensor([0.0, 4.0, 2.0])
    assert grpo(rewards_B, torch.zeros(3), norm_by_std=False)[0].tolist() == [-2.0, 2.0, 0.0]


def test_batch_scope_divides_by_the_deviation_of_all_rows() -> None:
    # All rewards 0, 2, 4, 6: mean 3, population sigma sqrt(5).
    advantages_B, _ = grpo(
        torch.tensor([0.0, 2.0, 4.0, 6.0]),
        torch.tensor([0, 0, 1, 1]),
        std_scope=StdScope.BATCH,
        unbiased=False,
        eps=0.0,
    )
    torch.testing.assert_close(advantages_B, torch.tensor([-1.0, 1.0, -1.0, 1.0]) / 5**0.5)


def test_rloo_by_hand() -> None:
    # 1 against (0 + 2)/2, 0 against (1 + 2)/2, 2 against (1 + 0)/2; a group of one gets 0.
    torch.testing.assert_close(rloo(REWARDS_B, GROUPS_B)[0], torch.tensor([0.0, 0.0, -1.5, 0.0, 1.5, 0.0]))


def test_equal_rewards_give_exactly_zero() -> None:
    rewards_B = torch.full((7,), 0.1)
    for estimate in (grpo, rloo):
        assert estimate(rewards_B, torch.zeros(7))[0].tolist() == [0.0] * 7


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(-10, 10, width=32), st.integers(0, 3)), min_size=1, max_size=12), st.randoms())
def test_shuffling_the_rows_shuffles_the_advantages(rows: list[tuple[float, int]], random) -> None:
    rewards_B = torch.tensor([reward for reward, _ in rows], dtype=torch.float64)
    groups_B = torch.tensor([group for _, group in rows])
    order_B = torch.tensor(random.sample(range(len(rows)), len(rows)))
    for estimate in (rloo, lambda *given: grpo(*given, eps=1e-3)):
        expected_B = estimate(rewards_B, groups_B)[0][order_B]
        torch.testing.assert_close(estimate(rewards_B[order_B], groups_B[order_B])[0], expected_B, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_not_finite_is_named(bad: float) -> None:
    with pytest.raises(RewardError, match=r"row 1 \(group 8\)"):
        grpo(torch.tensor([1.0, bad]), torch.tensor([8, 8]))


def test_estimators_spread_over_actions_and_stop_at_the_mask() -> None:
    cls, config = advantage_estimators.resolve({"name": "grpo", "norm_by_std": False}, "algorithm.advantage")
    mask_BT = torch.tensor([[1, 1, 0], [0, 1, 1]])
    advantages_BT, _ = cls(config)(torch.tensor([0.0, 2.0]), torch.tensor([3, 3]), mask_BT)
    assert advantages_BT.tolist() == [[-1.0, -1.0, 0.0], [0.0, 1.0, 1.0]]


def test_estimators_check_shapes_and_settings() -> None:
    cls, config = advantage_estimators.resolve({"name": "rloo"}, "algorithm.advantage")
    with pytest.raises(ValueError, match="mask"):
        cls(config)(torch.zeros(2), torch.zeros(2), torch.ones(3, 4))
    with pytest.raises(ValueError, match="group ids"):
        rloo(torch.zeros(2), torch.zeros(3))
    with pytest.raises(RecipeError, match="norm_by_std"):
        advantage_estimators.resolve({"name": "rloo", "norm_by_std": True}, "algorithm.advantage")


def test_equal_uids_share_a_group() -> None:
    assert group_ids(["b", "a", "b"]).tolist() == [0, 1, 0]
