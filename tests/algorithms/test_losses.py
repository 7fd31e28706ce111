"""Every policy loss: a case by hand, plain loops, finite differences, and what must not matter."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.algorithms import Aggregation, Denominators, merge_all, to_floats
from rl_core.algorithms.losses import Actions, policy_losses
from tests.algorithms import reference
from tests.algorithms.batches import B, batch, build, gradient_by_differences, rows_of
from tests.algorithms.denominators import denominators_of

CASES = sorted(reference.LOSSES)
SPLITTABLE = [case for case in CASES if case != "kl_cov"]
LOG2 = math.log(2)

BY_HAND: dict[str, tuple[dict[str, Any], list[float]]] = {
    # Each: the settings, and the loss of four actions with rho = 2, 1/2, 2, 1/2 and A = 1, 1, -1, -1; log pi_old =  # noqa: E501
    # -log 4, so pi_old = 1/4 and log pi = -log 2, -log 8, -log 2, -log 8.
    "ppo_clip": ({}, [-1.2, -0.5, 2.0, 0.8]),
    # The mean log-ratio is 0, so s = 1.
    "gspo": ({}, [-1.0, -1.0, 1.0, 1.0]),
    # Weights 2, 1/2 inside 0..5.
    "cispo": ({}, [2 * LOG2, 0.5 * 3 * LOG2, -2 * LOG2, -0.5 * 3 * LOG2]),
    "sapo": (
        {"tau_negative": 1.0},
        [
            -4 / (1 + math.exp(-1)),
            -4 / (1 + math.exp(0.5)),
            4 / (1 + math.exp(-1)),
            4 / (1 + math.exp(0.5)),
        ],
    ),
    # Log-ratios log 2 -> 0.4 (A > 0), -log 2, log 2, -log 2 -> -0.4 (A < 0): the mean is 0.
    "gmpo": ({}, [-1.0, -1.0, 1.0, 1.0]),
    # |p - q| = 1/4, 1/8: the first is far and moves on, the last moves on but is near.
    "dppo_tv": ({}, [0.0, 0.5 * 3 * LOG2, -2 * LOG2, -0.5 * 3 * LOG2]),
    # KL of (1/4, 3/4) to (1/2, 1/2) is 0.131, to (1/8, 7/8) 0.0577: both moves away are dropped.
    "dppo_kl": ({}, [0.0, 0.5 * 3 * LOG2, -2 * LOG2, 0.0]),
    # Penalty 1/4 (rho - 1)^2 / 2: 1/8 and 1/32.
    "drpo": ({"eps": 1.0}, [-2 + 0.125, -0.5 + 0.03125, 2 + 0.125, 0.5 + 0.03125]),
    "dro": (
        {"beta": 2.0},
        [LOG2 + LOG2**2, 3 * LOG2 + LOG2**2, -LOG2 + LOG2**2, -3 * LOG2 + LOG2**2],
    ),
    "reinforce": ({}, [LOG2, 3 * LOG2, -LOG2, -3 * LOG2]),
    "gpg": ({}, [LOG2, 3 * LOG2, -LOG2, -3 * LOG2]),
    # All are at tau or beyond: moves away (first and last) are dropped.
    "flow_dppo": ({}, [0.0, -0.5, 2.0, 0.0]),
    # mean A = 0 and mean log pi = -2 log 2, so c = log 2, -log 2, -log 2, log 2: two of 4 are
    # penalised by |d| = log 2.
    "kl_cov": ({"penalised_share": 0.5}, [-2.0 + LOG2, -0.5, 2.0, 0.5 + LOG2]),
    # The same covariances; both of 0.69 are in the range, PPO's values stay.
    "clip_cov": ({"detached_share": 1.0, "min_covariance": 0.5}, [-1.2, -0.5, 2.0, 0.8]),
}


def hand_actions() -> Actions:
    old_BT = torch.full((1, 4), -math.log(4), dtype=torch.float64)
    log_probs_BT = old_BT + torch.tensor([[2.0, 0.5, 2.0, 0.5]], dtype=torch.float64).log()
    advantages_BT = torch.tensor([[1.0, 1.0, -1.0, -1.0]], dtype=torch.float64)
    kl_BT = torch.full((1, 4), 1e-4, dtype=torch.float64)
    return Actions(
        log_probs_BT.requires_grad_(), old_BT, advantages_BT, torch.ones(1, 4).bool(), kl_BT
    )


def test_every_loss_has_a_case_by_hand_and_loops():
    assert sorted(BY_HAND) == policy_losses.names()
    assert {block["name"] for block, _, _ in reference.LOSSES.values()} | {"clip_cov"} == set(
        policy_losses.names()
    )


@pytest.mark.parametrize("name", sorted(BY_HAND))
def test_loss_by_hand(name: str):
    settings, expected = BY_HAND[name]
    cls, config = policy_losses.resolve({"name": name, **settings}, "loss")
    loss_BT, _ = cls(config).per_action(hand_actions())
    torch.testing.assert_close(loss_BT, torch.tensor([expected], dtype=torch.float64))


def loss_of(algorithm, data: dict[str, Tensor], denominators: Denominators | None = None):
    return algorithm.loss(**data, denominators=denominators or denominators_of(data["mask_BT"], 16))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_loss_equals_plain_loops(case: str, aggregation: Aggregation):
    block, loop, settings = reference.LOSSES[case]
    data = batch()
    loss, metrics = loss_of(build(loss={**block, "aggregation": aggregation}), data)
    expected = reference.aggregate(loop(rows_of(data), **settings), aggregation, 16)
    assert loss.item() == pytest.approx(expected, rel=1e-10, abs=1e-12)
    assert metrics["loss"].result() == pytest.approx(expected, rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("case", CASES)
def test_gradient_equals_finite_differences(case: str):
    block, loop, settings = reference.LOSSES[case]
    data = batch(seed=1)
    log_probs_BT = data["log_probs_BT"].clone().requires_grad_()
    loss, _ = loss_of(
        build(loss={**block, "aggregation": "seq-mean-token-mean"}),
        {**data, "log_probs_BT": log_probs_BT},
    )
    loss.backward()
    expected_BT = gradient_by_differences(
        lambda rows: reference.aggregate(loop(rows, **settings), "seq-mean-token-mean", 16), data
    )
    torch.testing.assert_close(log_probs_BT.grad, expected_BT, rtol=1e-6, atol=1e-9)


def test_the_gradient_of_gspo_is_that_of_the_row_ratio_itself():
    # With one advantage per row the token form (stop-gradients and all) is the derivative of
    # exp(mean d).
    data = batch(seed=2)
    data["advantages_BT"] = data["advantages_BT"][:, :1].expand(B, -1) * data["mask_BT"]
    log_probs_BT = data["log_probs_BT"].clone().requires_grad_()
    wide = {"name": "gspo", "clip_low": 1.0, "clip_high": 100.0}
    loss_of(build(loss=wide), {**data, "log_probs_BT": log_probs_BT})[0].backward()

    def value(rows: reference.Rows) -> float:
        losses = []
        for row in (row for row in rows if row):
            s = math.exp(sum(a["log_prob"] - a["old"] for a in row) / len(row))
            losses.append([-a["advantage"] * s for a in row])
        return reference.aggregate(losses, "seq-mean-token-mean", 16)

    torch.testing.assert_close(
        log_probs_BT.grad, gradient_by_differences(value, data), rtol=1e-6, atol=1e-9
    )


def gradient(
    block: dict[str, Any], data: dict[str, Tensor], parts: list[Tensor]
) -> tuple[Tensor, dict[str, float]]:
    algorithm = build(loss=block, kl={"coef": 0.1}, entropy_coef=0.01, correction={})
    log_probs_BT = data["log_probs_BT"].clone().requires_grad_()
    denominators = denominators_of(data["mask_BT"], 16)
    logged = []
    for rows in parts:
        micro = {
            name: tensor[rows] for name, tensor in {**data, "log_probs_BT": log_probs_BT}.items()
        }
        loss, metrics = loss_of(algorithm, micro, denominators)
        loss.backward()
        logged.append(metrics)
    assert log_probs_BT.grad is not None
    return log_probs_BT.grad, to_floats(merge_all(logged))


@pytest.mark.parametrize("case", SPLITTABLE)
def test_micro_batches_and_ranks_do_not_matter(case: str):
    data, block = batch(seed=3), reference.LOSSES[case][0]
    whole_BT, logged = gradient(block, data, [torch.arange(B)])
    halves = list(torch.arange(B).tensor_split(4))
    ranks = [torch.arange(B)[rank::2] for rank in range(2)]
    for parts in (halves, ranks):
        parted_BT, numbers = gradient(block, data, parts)
        torch.testing.assert_close(parted_BT, whole_BT, rtol=1e-10, atol=1e-14)
        assert numbers == pytest.approx(logged, rel=1e-10)


@pytest.mark.parametrize("case", CASES)
def test_the_order_of_rows_and_places_that_are_masked_do_not_matter(case: str):
    data, block = batch(seed=4), reference.LOSSES[case][0]
    whole_BT, logged = gradient(block, data, [torch.arange(B)])
    order = torch.tensor([5, 2, 0, 6, 1, 4, 3])
    shuffled_BT, numbers = gradient(
        block, {name: tensor[order] for name, tensor in data.items()}, [torch.arange(B)]
    )
    torch.testing.assert_close(shuffled_BT, whole_BT[order], rtol=1e-10, atol=1e-14)
    assert numbers == pytest.approx(logged, rel=1e-10)
    wider = {name: torch.nn.functional.pad(tensor, (2, 3)) for name, tensor in data.items()}
    padded_BT, _ = gradient(block, wider, [torch.arange(B)])
    torch.testing.assert_close(padded_BT[:, 2:-3], whole_BT, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_under_the_mask_never_leaks(case: str, poison: float):
    data, block = batch(seed=5), reference.LOSSES[case][0]
    clean_BT, logged = gradient(block, data, [torch.arange(B)])
    padding_BT = data["mask_BT"] == 0
    dirty = {name: tensor.masked_fill(padding_BT, poison) for name, tensor in data.items()}
    dirty["mask_BT"] = data["mask_BT"]
    dirty_BT, numbers = gradient(block, dirty, [torch.arange(B)])
    assert torch.equal(dirty_BT, clean_BT) and (dirty_BT[padding_BT] == 0).all()
    assert numbers == logged


@pytest.mark.parametrize("case", CASES)
def test_half_precision_is_computed_in_float32_and_float32_agrees_with_float64(case: str):
    data, algorithm = batch(seed=6), build(loss=reference.LOSSES[case][0])
    exact, _ = loss_of(algorithm, data)
    single, _ = loss_of(algorithm, {name: tensor.float() for name, tensor in data.items()})
    half, _ = loss_of(algorithm, {name: tensor.bfloat16() for name, tensor in data.items()})
    assert single.dtype == half.dtype == torch.float32
    assert single.item() == pytest.approx(exact.item(), rel=1e-4, abs=1e-5)


ON_POLICY_EQUAL = [case for case in CASES if case not in ("kl_cov", "gmpo", "gspo")]


@pytest.mark.parametrize("case", ON_POLICY_EQUAL)
def test_on_policy_the_gradient_is_the_plain_policy_gradient(case: str):
    # Ratio exactly 1: d loss / d log pi = -A / N for each of the N actions.
    data = batch(seed=7)
    log_probs_BT = data["old_log_probs_BT"].clone().requires_grad_()
    block = {**reference.LOSSES[case][0], "aggregation": "token-mean"}
    loss_of(build(loss=block), {**data, "log_probs_BT": log_probs_BT})[0].backward()
    torch.testing.assert_close(log_probs_BT.grad, -data["advantages_BT"] / data["mask_BT"].sum())


@pytest.mark.parametrize("case", ["gmpo", "gspo"])
def test_on_policy_a_row_loss_gives_each_action_its_share(case: str):
    data = batch(seed=8)
    data["advantages_BT"] = torch.arange(1.0, B + 1).double()[:, None] * data["mask_BT"]
    log_probs_BT = data["old_log_probs_BT"].clone().requires_grad_()
    loss_of(build(loss={"name": case}), {**data, "log_probs_BT": log_probs_BT})[0].backward()
    lengths_B1, num_rows = (
        data["mask_BT"].sum(1, keepdim=True).clamp(min=1),
        (data["mask_BT"].sum(1) > 0).sum(),
    )
    torch.testing.assert_close(log_probs_BT.grad, -data["advantages_BT"] / lengths_B1 / num_rows)


def test_clip_cov_detaches_as_many_as_configured_and_repeats_itself():
    data = batch(seed=9)
    block = {
        "name": "clip_cov",
        "min_covariance": 0.0,
        "max_covariance": 100.0,
        "detached_share": 0.1,
        "clip_high": 9.0,
    }
    found = []
    for seed in (0, 0, 1):
        log_probs_BT = data["log_probs_BT"].clone().requires_grad_()
        loss, metrics = loss_of(
            build(loss={**block, "seed": seed}), {**data, "log_probs_BT": log_probs_BT}
        )
        loss.backward()
        found.append((log_probs_BT.grad, metrics))
    plain_BT = data["log_probs_BT"].clone().requires_grad_()
    plain, _ = loss_of(
        build(loss={"name": "ppo_clip", "clip_high": 9.0}), {**data, "log_probs_BT": plain_BT}
    )
    plain.backward()
    detached_BT = (found[0][0] == 0) & (plain_BT.grad != 0)
    wanted = int(0.1 * int(data["mask_BT"].sum()))
    assert wanted > 1 and int(detached_BT.sum()) == wanted
    assert torch.equal(found[0][0], found[1][0]) and not torch.equal(found[0][0], found[2][0])
    assert found[0][1]["loss"].value == pytest.approx(plain.item())
    torch.testing.assert_close(found[0][0][~detached_BT], plain_BT.grad[~detached_BT])


def test_only_the_covariance_losses_depend_on_how_a_step_is_cut():
    assert [
        name for name in policy_losses.names() if not policy_losses.get(name).splits_exactly
    ] == [
        "clip_cov",
        "kl_cov",
    ]


@pytest.mark.parametrize("name", policy_losses.names())
def test_an_action_without_advantage_is_silent_in_the_losses_that_say_so(name: str):
    data = batch(0)
    log_probs_BT = data["log_probs_BT"].clone().requires_grad_()
    cls, config = policy_losses.resolve({"name": name}, "loss")
    zeros_BT, mask_BT = torch.zeros_like(log_probs_BT), data["mask_BT"] != 0
    kl_BT = torch.full_like(log_probs_BT, 0.5)
    actions = Actions(log_probs_BT, data["old_log_probs_BT"], zeros_BT, mask_BT, kl_BT)
    loss_BT, _ = cls(config).per_action(actions)
    loss_BT.sum().backward()
    assert log_probs_BT.grad is not None
    is_silent = not loss_BT.any() and not log_probs_BT.grad.any()
    assert is_silent == cls.vanishes_without_advantage
    assert is_silent == (name not in ("dro", "kl_cov"))


def test_dppo_lets_far_actions_move_back():
    # q = 1/2, p = 0.9: far. With A < 0 the step leads back and keeps its gradient, with A > 0 it is
    # dropped.
    for name in ("dppo_tv", "dppo_kl"):
        cls, config = policy_losses.resolve({"name": name}, "loss")
        for advantage, dropped in ((-1.0, False), (1.0, True)):
            far_BT = torch.tensor([[math.log(0.9)]])
            loss_BT, logged = cls(config).per_action(
                Actions(
                    far_BT,
                    torch.tensor([[math.log(0.5)]]),
                    torch.tensor([[advantage]]),
                    torch.ones(1, 1).bool(),
                )
            )
            assert bool(logged["clip_fraction"]) is dropped and (loss_BT.item() == 0) is dropped
