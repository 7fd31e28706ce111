"""Every advantage: a case by hand, plain loops, and what must not matter."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl_core.algorithms.advantages import AdvantageInputs, advantage_estimators, group_ids
from rl_core.algorithms.advantages.gae import gae
from rl_core.algorithms.advantages.scan import BLOCK, discounted_sums
from rl_core.errors import RecipeError, RewardError
from tests.algorithms import reference

# Group 4 holds 1, 0, 2: mean 1, sigma 1 over n - 1 and sqrt(2/3) over n. Group 9 is flat, group 1
# has one row.
REWARDS = [1.0, 5.0, 0.0, 5.0, 2.0, 7.0]
GROUPS = [4, 9, 4, 9, 4, 1]
LENGTHS = [1, 1, 3, 2, 2, 1]
MASK_BT = torch.arange(4)[None] < torch.tensor(LENGTHS)[:, None]
ROOT = math.sqrt(2 / 3)


def inputs(
    rewards: Any = REWARDS, groups: Any = GROUPS, mask_BT: Tensor = MASK_BT, **more: Any
) -> AdvantageInputs:
    return AdvantageInputs(
        torch.as_tensor(rewards, dtype=torch.float64), torch.as_tensor(groups), mask_BT, **more
    )


def estimate(block: dict[str, Any], given: AdvantageInputs) -> Tensor:
    cls, config = advantage_estimators.resolve(block, "algorithm.advantage")
    advantages_BT, _ = cls(config)(given)
    assert (advantages_BT[given.mask_BT == 0] == 0).all()
    return advantages_BT


BY_HAND: list[tuple[dict[str, Any], list[float]]] = [
    ({"name": "grpo", "eps": 0.0}, [0, 0, -1, 0, 1, 0]),
    ({"name": "grpo", "eps": 1.0}, [0, 0, -0.5, 0, 0.5, 0]),
    ({"name": "grpo", "eps": 3.0, "eps_in_root": True}, [0, 0, -0.5, 0, 0.5, 0]),
    ({"name": "grpo", "eps": 0.0, "unbiased": False}, [0, 0, -1 / ROOT, 0, 1 / ROOT, 0]),
    ({"name": "grpo", "norm_by_std": False}, [0, 0, -1, 0, 1, 0]),
    # All six: mean 20/6, sum of squares 104 - 400/6 = 112/3, variance over n - 1 112/15.
    (
        {"name": "grpo", "eps": 0.0, "std_scope": "batch"},
        [0, 0, -math.sqrt(15 / 112), 0, math.sqrt(15 / 112), 0],
    ),
    # 1 against (0 + 2)/2, 0 against (1 + 2)/2, 2 against (1 + 0)/2.
    ({"name": "rloo"}, [0, 0, -1.5, 0, 1.5, 0]),
    ({"name": "rloo", "clamp": 1.0}, [0, 0, -1, 0, 1, 0]),
    # Lengths 1, 3, 2: (1 + 0 + 4) / 6.
    ({"name": "opo"}, [1 / 6, 0, -5 / 6, 0, 7 / 6, 0]),
    # Five of six rows have a reward.
    ({"name": "gpg"}, [0, 0, -1.2, 0, 1.2, 0]),
    # 2 is ahead of 1; the two 5s share the lead.
    ({"name": "grpo_passk"}, [0, 0, 0, 0, 1, 0]),
    ({"name": "grpo_passk", "norm_by_std": True, "eps": 1.0}, [0, 0, 0, 0, 0.5, 0]),
    # The mean of group 4 is 1.
    ({"name": "maxrl", "eps": 1.0}, [0, 0, -0.5, 0, 0.5, 0]),
    # Group 4: pairs {1,0} {1,2} {0,2} all hold a right row, so k = 2 teaches nothing; k = 1: mean
    # 2/3.
    ({"name": "pass_at_k", "k": 2}, [0, 0, 0, 0, 0, 0]),
    ({"name": "pass_at_k", "k": 1}, [1 / math.sqrt(2), 0, -math.sqrt(2), 0, 1 / math.sqrt(2), 0]),
]


@pytest.mark.parametrize(("block", "expected"), BY_HAND, ids=lambda value: str(value))
def test_row_advantages_by_hand(block: dict[str, Any], expected: list[float]):
    expected_BT = torch.tensor(expected, dtype=torch.float64)[:, None] * MASK_BT
    torch.testing.assert_close(estimate(block, inputs()), expected_BT)


def test_remax_by_hand():
    greedy_B = torch.tensor([1.0, 1.0, 0.5, 5.0, 0.0, 7.5])
    advantages_BT = estimate({"name": "remax"}, inputs(greedy_rewards_B=greedy_B))
    assert advantages_BT[:, 0].tolist() == [0.0, 4.0, -0.5, 0.0, 2.0, -0.5]


def test_gdpo_by_hand():
    # Rows of one group: format 1, -1 and score 10, 30, each +-1/sqrt 2 over its own sigma, and
    # opposed.
    parts = {"format": torch.tensor([1.0, -1.0]), "score": torch.tensor([10.0, 30.0])}
    given = inputs([11.0, 29.0], [0, 0], torch.ones(2, 1), rewards_by_key=parts)
    # 3/sqrt 2 - 1/sqrt 2 = sqrt 2 and -sqrt 2, sigma 2: whitened to +-1/sqrt 2, though the score's
    # spread is larger.
    heavier_BT = estimate({"name": "gdpo", "weights": {"format": 3.0}, "eps": 0.0}, given)
    torch.testing.assert_close(heavier_BT[:, 0], torch.tensor([0.5**0.5, -(0.5**0.5)]).double())
    # With eps 1 (outside the root) the parts shrink differently: +-1/(1 + sqrt 2) and -+10/(1 +
    # sqrt 200).
    total = 1 / (1 + 2**0.5) - 10 / (1 + 200**0.5)
    equal_BT = estimate({"name": "gdpo", "eps": 1.0}, given)
    torch.testing.assert_close(equal_BT[0, 0].item(), total / (1 + abs(total) * 2**0.5))
    with pytest.raises(RewardError, match="tone"):
        estimate({"name": "gdpo", "weights": {"tone": 1.0}}, given)


def test_gae_by_hand_skips_what_is_not_the_models():
    # gamma 1/2, lambda 1/2. Actions at 0 and 2: delta_2 = 4 - 2 = 2, A_2 = 2; delta_0 = 0 + 1 - 1 =
    # 0, A_0 = 1/2.
    rewards_BT, values_BT = (
        torch.tensor([[0.0, 9.0, 4.0, 9.0]]),
        torch.tensor([[1.0, 9.0, 2.0, 9.0]]),
    )
    advantages_BT, returns_BT = gae(
        rewards_BT, values_BT, torch.tensor([[1, 0, 1, 0]]), gamma=0.5, lam=0.5
    )
    assert advantages_BT.tolist() == [[0.5, 0.0, 2.0, 0.0]]
    assert returns_BT.tolist() == [[1.5, 0.0, 4.0, 0.0]]


def test_reinforce_plus_plus_by_hand():
    # Returns with gamma 1/2 and reward 4 on the last of the actions 0, 2, 3: 1, 2, 4. Mean 7/3,
    # variance 7/3.
    given = inputs([4.0], [0], torch.tensor([[1, 0, 1, 1]]))
    advantages_BT = estimate({"name": "reinforce_plus_plus", "gamma": 0.5, "eps": 0.0}, given)
    expected = [(value - 7 / 3) / math.sqrt(7 / 3) for value in (1, 2, 4)]
    assert advantages_BT[0, [0, 2, 3]].tolist() == pytest.approx(expected)


def test_reinforce_plus_plus_baseline_by_hand():
    # Centred -1 (three actions) and 1 (one action): mean -1/2, variance over n - 1 (3/4 + 9/4)/3 =
    # 1.
    given = inputs([0.0, 2.0], [0, 0], torch.tensor([[1, 1, 1], [1, 0, 0]]))
    advantages_BT = estimate({"name": "reinforce_plus_plus_baseline", "eps": 0.0}, given)
    assert advantages_BT.tolist() == [[-0.5, -0.5, -0.5], [1.5, 0.0, 0.0]]


def test_optimal_token_baseline_by_hand():
    # First actions: energies 1 - 2 (1/2) + 1/2 = 1/2 and 1 - 2 (1/4) + 1 = 3/2: B = (1/2 * 0 + 3/2
    # * 4) / 2 = 3. The second action of row 1 has no sibling left, and keeps its return.
    log_probs_BT = torch.tensor([[0.5, 0.5], [0.25, 0.25]]).log()
    squares_BT = torch.tensor([[0.5, 9.0], [1.0, 1.0]])
    given = inputs([0.0, 4.0], [0, 0], torch.tensor([[1, 0], [1, 1]]),
                   log_probs_BT=log_probs_BT, sum_squared_probs_BT=squares_BT)  # fmt: skip
    torch.testing.assert_close(
        estimate({"name": "optimal_token_baseline"}, given),
        torch.tensor([[-3.0, 0.0], [1.0, 4.0]]).double(),
    )


def test_optimal_token_baseline_of_a_row_that_never_had_a_sibling_is_zero():
    # Row 0 is alone in its group; row 1's only sibling failed and has no action.
    halves_BT = torch.full((3, 2), 0.5)
    given = inputs([2.0, 3.0, 4.0], [0, 1, 1], torch.tensor([[1, 1], [1, 1], [0, 0]]),
                   log_probs_BT=halves_BT.log(), sum_squared_probs_BT=halves_BT)  # fmt: skip
    assert estimate({"name": "optimal_token_baseline"}, given).tolist() == [[0.0, 0.0]] * 3


B, T = 24, 70
"""More columns than two blocks of the scan."""


def random_batch(seed: int) -> AdvantageInputs:
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    mask_BT = (torch.rand(B, T, generator=random) < 0.6).long()
    mask_BT[3], mask_BT[5] = 0, 1
    rewards_B = torch.randint(0, 3, (B,), generator=random).double()
    log_probs_BT = -normal(B, T).abs() - 0.01
    return AdvantageInputs(
        rewards_B,
        torch.randint(0, 6, (B,), generator=random),
        mask_BT,
        values_BT=normal(B, T),
        greedy_rewards_B=normal(B),
        rewards_by_key={"a": rewards_B, "b": normal(B)},
        log_probs_BT=log_probs_BT,
        sum_squared_probs_BT=log_probs_BT.exp().square() + 0.1,
    )


def rewards_at_the_end(batch: AdvantageInputs) -> list[list[float]]:
    rows = []
    for reward, mask in zip(batch.rewards_B.tolist(), batch.mask_BT.tolist(), strict=True):
        row = [0.0] * T
        if any(mask):
            row[max(t for t, m in enumerate(mask) if m)] = reward
        rows.append(row)
    return rows


def by_loops(block: dict[str, Any], batch: AdvantageInputs) -> list[list[float]]:
    rewards, groups, mask = (
        batch.rewards_B.tolist(),
        batch.group_ids_B.tolist(),
        batch.mask_BT.tolist(),
    )
    name = block["name"]
    placed = rewards_at_the_end(batch)
    if name == "gae":
        values = batch.values_BT.tolist()  # pyright: ignore[reportOptionalMemberAccess]
        rows = [
            reference.gae(r, v, m, block["gamma"], block["lam"])[0]
            for r, v, m in zip(placed, values, mask, strict=True)
        ]
        return reference.whiten(rows, mask)
    if name == "reinforce_plus_plus":
        rows = [
            reference.discounted(r, m, block["gamma"]) for r, m in zip(placed, mask, strict=True)
        ]
        return reference.whiten(rows, mask)
    if name == "optimal_token_baseline":
        assert batch.log_probs_BT is not None and batch.sum_squared_probs_BT is not None
        return reference.optimal_token_baseline(
            rewards, groups, mask, batch.log_probs_BT.tolist(), batch.sum_squared_probs_BT.tolist()
        )
    if name == "reinforce_plus_plus_baseline":
        centred = [[a] * T for a in reference.grpo(rewards, groups, by_std=False)]
        return reference.whiten(centred, mask)
    if name == "gdpo":
        assert batch.rewards_by_key is not None
        parts = [reference.grpo(part.tolist(), groups) for part in batch.rewards_by_key.values()]
        total = [[2.0 * a + b] * T for a, b in zip(*parts, strict=True)]
        return reference.whiten(total, mask, eps=1e-6, in_root=False)
    lengths = [sum(row) for row in mask]
    rows = {
        "grpo": lambda: reference.grpo(rewards, groups),
        "rloo": lambda: reference.rloo(rewards, groups),
        "opo": lambda: reference.opo(rewards, groups, lengths),
        "gpg": lambda: reference.gpg(rewards, groups),
        "maxrl": lambda: reference.maxrl(rewards, groups),
        "grpo_passk": lambda: reference.grpo_passk(rewards, groups),
        "pass_at_k": lambda: reference.pass_at_k(rewards, groups, 3),
        "best_of_n": lambda: reference.best_of_n(rewards, groups, 2),
        "remax": lambda: [
            r - g for r, g in zip(rewards, batch.greedy_rewards_B.tolist(), strict=True)
        ],  # pyright: ignore[reportOptionalMemberAccess]
    }[name]()
    return [[a * m for m in row] for a, row in zip(rows, mask, strict=True)]


BLOCKS: list[dict[str, Any]] = [
    {"name": "grpo"},
    {"name": "rloo"},
    {"name": "opo"},
    {"name": "gpg"},
    {"name": "maxrl"},
    {"name": "grpo_passk"},
    {"name": "pass_at_k", "k": 3},
    {"name": "remax"},
    {"name": "best_of_n", "keep": 2},
    {"name": "gae", "gamma": 0.9, "lam": 0.8},
    {"name": "reinforce_plus_plus", "gamma": 0.9},
    {"name": "reinforce_plus_plus_baseline"},
    {"name": "gdpo", "weights": {"a": 2.0}},
    {"name": "optimal_token_baseline"},
]
ids = pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block["name"])


def test_every_advantage_is_in_the_table():
    assert sorted(block["name"] for block in BLOCKS) == advantage_estimators.names()


@ids
@pytest.mark.parametrize("seed", range(3))
def test_advantages_equal_plain_loops(block: dict[str, Any], seed: int):
    batch = random_batch(seed)
    expected_BT = torch.tensor(by_loops(block, batch), dtype=torch.float64)
    torch.testing.assert_close(estimate(block, batch), expected_BT, rtol=1e-9, atol=1e-9)


def changed(batch: AdvantageInputs, change: Any) -> AdvantageInputs:
    """The batch with `change` applied to every tensor."""
    fields = {name: value for name, value in vars(batch).items() if value is not None}
    parts = fields.pop("rewards_by_key")
    moved = {name: change(value) for name, value in fields.items()}
    return AdvantageInputs(
        **moved, rewards_by_key={key: change(part) for key, part in parts.items()}
    )


@ids
def test_shuffling_the_rows_shuffles_the_advantages(block: dict[str, Any]):
    batch = random_batch(5)
    order_B = torch.randperm(B, generator=torch.Generator().manual_seed(0))
    shuffled_BT = estimate(block, changed(batch, lambda tensor: tensor[order_B]))
    torch.testing.assert_close(shuffled_BT, estimate(block, batch)[order_B], rtol=1e-9, atol=1e-9)


@ids
def test_padding_and_what_stands_there_do_not_matter(block: dict[str, Any]):
    batch = random_batch(6)
    clean_BT = estimate(block, batch)
    masked_BT = batch.mask_BT == 0
    for poison in (math.nan, math.inf, -math.inf):

        def spoil(tensor: Tensor, poison: float = poison) -> Tensor:
            return (
                tensor.masked_fill(masked_BT, poison)
                if tensor.ndim == 2 and tensor.is_floating_point()
                else tensor
            )

        assert torch.equal(estimate(block, changed(batch, spoil)), clean_BT)
    wider_BT = estimate(
        block, changed(batch, lambda t: torch.nn.functional.pad(t, (1, 4)) if t.ndim == 2 else t)
    )
    torch.testing.assert_close(wider_BT[:, 1:-4], clean_BT, rtol=1e-9, atol=1e-9)


@ids
def test_the_result_is_float32_at_least_and_agrees(block: dict[str, Any]):
    batch = random_batch(7)
    exact_BT = estimate(block, batch)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 1e-5)):
        # Rewards are whole numbers, so half precision holds them; the other inputs stay as they
        # are.
        narrow = AdvantageInputs(**{**vars(batch), "rewards_B": batch.rewards_B.to(dtype)})
        found_BT = estimate(block, narrow)
        assert found_BT.dtype == torch.float32
        torch.testing.assert_close(found_BT.double(), exact_BT, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("length", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
@pytest.mark.parametrize("decay", [0.0, 0.3, 0.95, 1.0])
def test_discounted_sums_equal_the_recursion(length: int, decay: float):
    values_BT = torch.randn(
        3, length, dtype=torch.float64, generator=torch.Generator().manual_seed(length)
    )
    expected_BT = torch.zeros_like(values_BT)
    running_B = torch.zeros(3, dtype=torch.float64)
    for t in reversed(range(length)):
        running_B = expected_BT[:, t] = values_BT[:, t] + decay * running_B
    torch.testing.assert_close(discounted_sums(values_BT, decay), expected_BT)
    torch.testing.assert_close(
        discounted_sums(values_BT.float(), decay), expected_BT.float(), rtol=1e-5, atol=1e-5
    )


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-10, 10, width=32), st.integers(0, 3)), min_size=1, max_size=12)
)
def test_group_advantages_of_any_rewards_equal_loops(rows: list[tuple[float, int]]):
    rewards, groups = [reward for reward, _ in rows], [group for _, group in rows]
    given = inputs(rewards, groups, torch.ones(len(rows), 1))
    for block, expected in (
        ({"name": "rloo"}, reference.rloo(rewards, groups)),
        ({"name": "grpo", "eps": 1e-3}, reference.grpo(rewards, groups, eps=1e-3)),
    ):
        torch.testing.assert_close(
            estimate(block, given)[:, 0],
            torch.tensor(expected, dtype=torch.float64),
            atol=1e-8,
            rtol=1e-8,
        )


def test_penalties_are_taken_from_the_rewards():
    penalties_BT = torch.tensor([[0.5, 9.0], [0.25, 0.25]])
    given = inputs([1.0, 2.0], [0, 1], torch.tensor([[1, 0], [1, 1]]), penalties_BT=penalties_BT)
    assert given.row_rewards().tolist() == [0.5, 1.5]
    assert given.action_rewards().tolist() == [[0.5, 0.0], [-0.25, 1.75]]


def test_equal_rewards_give_exactly_zero():
    given = inputs([0.1] * 7, [0] * 7, torch.ones(7, 2))
    for name in (
        "grpo",
        "rloo",
        "opo",
        "maxrl",
        "gpg",
        "grpo_passk",
        "reinforce_plus_plus_baseline",
    ):
        assert not estimate({"name": name}, given).any(), name


def test_metrics_count_groups_that_teach_nothing():
    cls, config = advantage_estimators.resolve({"name": "rloo"}, "algorithm.advantage")
    _, metrics = cls(config)(inputs())
    assert metrics["zero_std_groups"].result() == 2 and metrics["num_groups"].result() == 3
    assert metrics["reward_mean"].result() == pytest.approx(20 / 6)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_named(bad: float):
    with pytest.raises(RewardError, match=r"row 1 \(group 8\)"):
        estimate({"name": "grpo"}, inputs([1.0, bad], [8, 8], torch.ones(2, 1)))


def test_missing_inputs_and_wrong_shapes_are_named():
    for name, missing in (
        ("gae", "values_BT"),
        ("remax", "greedy_rewards_B"),
        ("gdpo", "rewards_by_key"),
    ):
        with pytest.raises(ValueError, match=rf"{missing} is required by the advantage {name}"):
            estimate({"name": name}, inputs())
    with pytest.raises(ValueError, match="mask must be"):
        inputs([1.0], [0], torch.ones(2, 3))
    with pytest.raises(ValueError, match="values_BT has shape"):
        inputs(values_BT=torch.zeros(6, 5))
    with pytest.raises(ValueError, match="group ids"):
        estimate({"name": "rloo"}, inputs([1.0, 2.0], [0], torch.ones(2, 1)))
    with pytest.raises(RecipeError, match="norm_by_std"):
        advantage_estimators.resolve({"name": "rloo", "norm_by_std": True}, "algorithm.advantage")


def test_equal_uids_share_a_group():
    assert group_ids(["b", "a", "b", "c", "a"]).tolist() == [0, 1, 0, 2, 1]
