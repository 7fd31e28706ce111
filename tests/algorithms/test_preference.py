"""MPO and its siblings: by hand, against loops, gradients, splits, padding, and the running
reward."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.algorithms import Denominators, merge_all, to_floats
from rl_core.algorithms.preference import Preference
from rl_core.errors import RecipeError
from tests.algorithms.batches import build, gradient_by_differences, rows_of
from tests.algorithms.denominators import denominators_of
from tests.algorithms.reference import Rows

NAMES = ("mpo", "dpo", "ipo", "simpo", "orpo", "kto")
N, T = 3, 5


def preference(name: str, **block: Any) -> Preference:
    algorithm = build(name, **block)
    assert isinstance(algorithm, Preference)
    algorithm.delta = 0.05
    return algorithm


def pairs(seed: int = 0) -> dict[str, Tensor]:
    """Three pairs in float64, chosen first, as the algorithms mark them."""
    random = torch.Generator().manual_seed(seed)
    mask_BT = (torch.rand(2 * N, T, generator=random) < 0.6).double()
    mask_BT[:, 0] = 1
    log_probs_BT = -0.1 - torch.rand(2 * N, T, generator=random, dtype=torch.float64)
    signs_B = torch.tensor([1.0, -1.0] * N, dtype=torch.float64)
    return {
        "log_probs_BT": log_probs_BT,
        "old_log_probs_BT": log_probs_BT,
        "ref_log_probs_BT": log_probs_BT
        + 0.5 * torch.randn(2 * N, T, generator=random, dtype=torch.float64),
        "advantages_BT": signs_B[:, None] * mask_BT,
        "mask_BT": mask_BT,
    }


def log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value))


def sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value))


def plain(rows: Rows, name: str, beta: float, delta: float, margin: float) -> float:
    total = 0.0
    for chosen, rejected in zip(rows[::2], rows[1::2], strict=True):
        rewards = [beta * sum(a["log_prob"] - a["ref"] for a in row) for row in (chosen, rejected)]
        means = [sum(a["log_prob"] for a in row) / len(row) for row in (chosen, rejected)]
        odds = [m - math.log(1 - math.exp(m)) for m in means]
        dpo = -log_sigmoid(rewards[0] - rewards[1])
        bco = -log_sigmoid(rewards[0] - delta) - log_sigmoid(delta - rewards[1])
        total += {
            "mpo": 0.8 * dpo + 0.2 * bco - means[0],
            "dpo": dpo,
            "ipo": ((rewards[0] - rewards[1]) / beta - 1 / (2 * beta)) ** 2,
            "simpo": -log_sigmoid(beta * (means[0] - means[1]) - margin),
            "orpo": -means[0] - 0.1 * log_sigmoid(odds[0] - odds[1]),
            "kto": 2 - sigmoid(rewards[0] - max(0, delta)) - sigmoid(max(0, delta) - rewards[1]),
        }[name]
    return total / (len(rows) / 2)


def run(algorithm: Preference, data: dict[str, Tensor], denominators: Denominators | None = None):
    return algorithm.loss(
        **data, entropy_BT=None, denominators=denominators or denominators_of(data["mask_BT"])
    )


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradient_equal_plain_loops(name: str):
    algorithm, data = preference(name), pairs()
    beta, margin = algorithm.config.beta, algorithm.config.margin
    log_probs_BT = data["log_probs_BT"].clone().requires_grad_()
    loss, _ = run(algorithm, {**data, "log_probs_BT": log_probs_BT})
    assert loss.item() == pytest.approx(plain(rows_of(data), name, beta, 0.05, margin), rel=1e-10)
    loss.backward()
    expected_BT = gradient_by_differences(lambda rows: plain(rows, name, beta, 0.05, margin), data)
    torch.testing.assert_close(log_probs_BT.grad, expected_BT, rtol=1e-5, atol=1e-8)


def test_mpo_by_hand():
    # r_c = 0.1 * 10 = 1, r_r = 0.1 * -10 = -1, delta 0: DPO -log sigmoid(2), BCO -2 log sigmoid(1),
    # SFT 5 / 1.
    data = {
        "log_probs_BT": torch.tensor([[-5.0], [-20.0]]),
        "old_log_probs_BT": torch.zeros(2, 1),
        "ref_log_probs_BT": torch.tensor([[-15.0], [-10.0]]),
        "advantages_BT": torch.tensor([[1.0], [-1.0]]),
        "mask_BT": torch.ones(2, 1),
    }
    algorithm = build("mpo")
    assert isinstance(algorithm, Preference)
    loss, metrics = run(algorithm, data)
    assert loss.item() == pytest.approx(-0.8 * log_sigmoid(2) - 0.4 * log_sigmoid(1) + 5, rel=1e-6)
    numbers = to_floats(metrics)
    assert numbers["implicit_reward"] == pytest.approx(0.0, abs=1e-6)
    assert (numbers["reward_margin"], numbers["reward_accuracy"]) == (pytest.approx(2.0), 1.0)


HAND_WORKED = [
    # (r_c, r_r) of the pair on each of two ranks; delta before; preference and quality loss of
    # both; delta after. Step 1: 0.8 sp(-2) = 0.8 * 0.126928; 0.2 (2 sp(-1) + sp(-2) + sp(0)) / 2
    # with sp(x) = log(1 + e^x); mean 1/2.
    (((1.0, -1.0), (2.0, 0.0)), 0.0, 0.101542, 0.144660, 0.25),
    # Step 2: 0.8 (sp(0) + sp(-2)) / 2; 0.2 (sp(-0.75) + sp(0.75) + sp(0.25) + sp(-2.25)) / 2; mean
    # 0.
    (((1.0, 1.0), (0.0, -2.0)), 0.25, 0.328030, 0.244989, 0.125),
    # Step 3: the same margins; 0.2 (sp(-2.875) + sp(0.875) + sp(0.125) + sp(-0.125)) / 2; mean 1.
    (((3.0, 1.0), (0.0, 0.0)), 0.125, 0.328030, 0.266852, 0.5625),
]


def test_loss_parts_and_delta_of_mpo_by_hand_over_three_steps_and_two_ranks():
    driver, ranks = build("mpo", reward_decay=0.5), [build("mpo"), build("mpo")]
    for rewards, before, preference_loss, quality_loss, after in HAND_WORKED:
        assert [rank.state_dict() for rank in ranks] == [{"delta": pytest.approx(before)}] * 2
        measured = [
            run(rank, one_pair(*pair), Denominators(4, 4, 1))[1]
            for rank, pair in zip(ranks, rewards, strict=True)
        ]
        step = to_floats(merge_all(measured))
        assert step["preference_loss"] == pytest.approx(preference_loss, abs=2e-6)
        assert step["quality_loss"] == pytest.approx(quality_loss, abs=2e-6)
        assert step["generation_loss"] == pytest.approx(1.0)
        driver.observe(step, num_rows=4)
        assert driver.state_dict() == {"delta": pytest.approx(after)}
        for rank in ranks:
            rank.load_state_dict(driver.state_dict())


def one_pair(chosen_reward: float, rejected_reward: float) -> dict[str, Tensor]:
    """Answers of one token with these rewards at beta 0.1; the chosen one has log-probability
    -1."""
    log_probs_BT = torch.tensor([[-1.0], [-2.0]])
    return {
        "log_probs_BT": log_probs_BT,
        "old_log_probs_BT": log_probs_BT,
        "ref_log_probs_BT": log_probs_BT - 10 * torch.tensor([[chosen_reward], [rejected_reward]]),
        "advantages_BT": torch.tensor([[1.0], [-1.0]]),
        "mask_BT": torch.ones(2, 1),
    }


@pytest.mark.parametrize("name", NAMES)
def test_splits_of_pairs_padding_and_poison_do_not_matter(name: str):
    algorithm, data = preference(name), pairs(seed=1)
    denominators = denominators_of(data["mask_BT"])
    found = []
    away_BT = data["mask_BT"] == 0
    dirty = {
        key: value.masked_fill(away_BT, math.nan) for key, value in data.items() if key != "mask_BT"
    }
    for parts, given in ((1, data), (3, {**data, **dirty})):
        log_probs_BT = given["log_probs_BT"].clone().requires_grad_()
        logged = []
        for rows in torch.arange(2 * N).view(parts, -1):
            loss, metrics = run(
                algorithm,
                {
                    key: value[rows]
                    for key, value in {**given, "log_probs_BT": log_probs_BT}.items()
                },
                denominators,
            )
            loss.backward()
            logged.append(metrics)
        found.append((log_probs_BT.grad, to_floats(merge_all(logged))))
    torch.testing.assert_close(found[1][0], found[0][0], rtol=1e-10, atol=1e-14)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-10)


def test_rewards_say_which_answer_is_the_chosen_one():
    advantages_BT, _ = preference("dpo").advantages(
        torch.tensor([1.0, 0.0]), torch.tensor([0, 0]), torch.tensor([[1, 1], [1, 0]])
    )
    assert advantages_BT.tolist() == [[1.0, 1.0], [-1.0, 0.0]]


def test_an_idle_pass_keeps_its_graph_and_adds_nothing():
    data = {key: value[:1] for key, value in pairs().items()}
    log_probs_BT = data["log_probs_BT"].clone().requires_grad_()
    loss, metrics = run(
        preference("mpo"),
        {**data, "log_probs_BT": log_probs_BT, "mask_BT": torch.zeros(1, T)},
        Denominators(9, 4, T),
    )
    loss.backward()
    assert loss.item() == 0.0 and log_probs_BT.grad is not None and not log_probs_BT.grad.any()
    assert metrics["implicit_reward"].weight == 0


def test_rows_that_are_not_pairs_are_refused():
    data = pairs()
    for order in ([1, 0], [0, 2], [0]):
        with pytest.raises(ValueError, match="adjacent pairs"):
            run(preference("dpo"), {key: value[order] for key, value in data.items()})
    with pytest.raises(ValueError, match="ref_log_probs_BT is required"):
        run(preference("dpo"), {**data, "ref_log_probs_BT": None})  # pyright: ignore[reportArgumentType]


def test_the_running_reward_moves_once_a_step_and_comes_back_from_a_checkpoint():
    algorithm = build("mpo")
    algorithm.observe({"implicit_reward": 2.0}, num_rows=8)
    assert algorithm.state_dict() == {"delta": pytest.approx(0.02)}
    algorithm.observe({"implicit_reward": 1.0}, num_rows=8)
    assert algorithm.state_dict() == {"delta": pytest.approx(0.02 * 0.99 + 0.01)}
    restored = build("mpo")
    restored.load_state_dict(algorithm.state_dict())
    assert isinstance(restored, Preference) and isinstance(algorithm, Preference)
    assert run(restored, pairs())[0].item() == run(algorithm, pairs())[0].item()


def test_presets_say_whether_they_need_a_reference():
    assert [name for name in NAMES if build(name).needs_reference] == ["mpo", "dpo", "ipo", "kto"]
    assert (
        build("mpo").rows_per_unit == 2
        and build("mpo", generation_weight=0.0).supports_multi_update
    )
    with pytest.raises(RecipeError, match="did you mean 'beta'"):
        build("dpo", betta=1)
