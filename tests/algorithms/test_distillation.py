"""The divergences against plain loops in float64, the teacher's advantages by hand, and what a
block refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.algorithms import algorithms
from rl_core.algorithms.distillation import Distillation, Divergence, divergence
from rl_core.algorithms.terms import Denominators
from rl_core.errors import RecipeError, RewardError

N, V = 5, 17


def build(**block: Any) -> Distillation:
    values = {"name": "distillation", "teacher": "a-folder", **block}
    cls, config = algorithms.resolve(values, "algorithm")
    made = cls(config)
    assert isinstance(made, Distillation)
    return made


def log_probs(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (3 * torch.randn(N, V, generator=generator)).log_softmax(-1)


def plain(policy: list[float], teacher: list[float], kind: str, beta: float) -> float:
    """One position, in Python's own floats."""

    def kl(of: list[float], other: list[float]) -> float:
        return math.fsum(p * math.log(p / q) for p, q in zip(of, other, strict=True))

    if kind == "reverse_kl":
        return kl(policy, teacher)
    if kind == "forward_kl":
        return kl(teacher, policy)
    mixed = [beta * t + (1 - beta) * s for s, t in zip(policy, teacher, strict=True)]
    return beta * kl(teacher, mixed) + (1 - beta) * kl(policy, mixed)


@pytest.mark.parametrize(
    ("kind", "beta"),
    [("reverse_kl", 0.5), ("forward_kl", 0.5), ("jsd", 0.5), ("jsd", 0.1), ("jsd", 0.9)],
)
def test_a_divergence_is_that_of_plain_loops(kind: str, beta: float) -> None:
    policy_NV, teacher_NV = log_probs(0), log_probs(1)
    found = divergence(policy_NV, teacher_NV, Divergence(kind), beta).tolist()
    wanted = [
        plain(policy.double().exp().tolist(), teacher.double().exp().tolist(), kind, beta)
        for policy, teacher in zip(policy_NV, teacher_NV, strict=True)
    ]
    assert found == pytest.approx(wanted, abs=1e-5)
    assert divergence(policy_NV, policy_NV, Divergence(kind), beta).abs().max() < 1e-6


def test_a_token_that_the_teacher_rules_out_costs_a_finite_amount() -> None:
    policy_NV, teacher_NV = log_probs(0), log_probs(1)
    teacher_NV[:, 0] = -math.inf
    policy_NV = policy_NV.requires_grad_()
    for kind in Divergence:
        divergence(policy_NV, teacher_NV, kind).sum().backward()
    assert policy_NV.grad is not None and policy_NV.grad.isfinite().all()


MASK_BT = torch.tensor([[1, 1, 0], [1, 0, 0]])
OLD_BT = torch.tensor([[-1.0, -2.0, math.nan], [-0.5, math.nan, math.nan]])
TEACHER_BT = torch.tensor([[-0.5, -3.0, math.nan], [-0.5, math.nan, math.nan]])


def test_a_sampled_token_has_the_advantage_of_its_log_ratio_and_the_weighted_reward() -> None:
    measured: dict[str, Any] = {"log_probs_BT": OLD_BT, "teacher_log_probs_BT": TEACHER_BT}
    rewards_B, groups_B = torch.tensor([1.0, 0.0]), torch.zeros(2).long()
    alone_BT, metrics = build(coef=2.0).advantages(rewards_B, groups_B, MASK_BT, **measured)
    assert alone_BT.tolist() == [[1.0, -2.0, 0.0], [0.0, 0.0, 0.0]], "-2 (log S - log T)"
    assert metrics["teacher_kl"].result() == pytest.approx(0.5 / 3)
    said = [math.exp(-0.5), math.exp(-3.0), math.exp(-0.5)]
    assert metrics["teacher_coverage"].result() == pytest.approx(sum(said) / 3)
    mixed = build(coef=2.0, reward_weight=3.0, advantage={"name": "grpo", "norm_by_std": False})
    mixed_BT, _ = mixed.advantages(rewards_B, groups_B, MASK_BT, **measured)
    assert mixed_BT.tolist() == [[2.5, -0.5, 0.0], [-1.5, 0.0, 0.0]], "and 3 (R - 0.5)"
    assert mixed.needs_siblings and not build().needs_siblings


def test_a_teacher_that_says_nothing_is_an_error_and_no_advantage_of_zero() -> None:
    rewards_B, groups_B = torch.zeros(2), torch.zeros(2).long()
    with pytest.raises(ValueError, match="teacher_log_probs_BT"):
        build().advantages(rewards_B, groups_B, MASK_BT, log_probs_BT=OLD_BT)
    silent_BT = TEACHER_BT.clone()
    silent_BT[1, 0] = -math.inf
    with pytest.raises(RewardError, match="row 1: the teacher gave a token no finite"):
        build().advantages(
            rewards_B, groups_B, MASK_BT, log_probs_BT=OLD_BT, teacher_log_probs_BT=silent_BT
        )


def test_a_divergence_enters_the_loss_on_the_denominators_of_the_step() -> None:
    algorithm = build(vocabulary="full", divergence="jsd", coef=0.5)
    apart_BT = torch.tensor([[1.0, 3.0, math.nan], [5.0, 0.0, 0.0]])
    loss, metrics = algorithm.loss(
        OLD_BT, OLD_BT, torch.zeros(2, 3), MASK_BT, None, None, Denominators(6, 4, 3),
        teacher_divergence_BT=apart_BT,
    )  # fmt: skip
    assert float(loss) == pytest.approx(0.5 * 9 / 6)
    assert metrics["teacher_divergence"].result() == pytest.approx(3.0)
    assert metrics["loss"].result() == pytest.approx(float(loss))
    assert not algorithm.vanishes_without_advantage and not algorithm.measures_first
    assert not algorithm.learns_from_advantages and build().learns_from_advantages
    with pytest.raises(ValueError, match="teacher_divergence_BT"):
        algorithm.loss(
            OLD_BT, OLD_BT, torch.zeros(2, 3), MASK_BT, None, None, Denominators(6, 4, 3)
        )


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ({"divergence": "jsd"}, "set vocabulary: top_k or full"),
        ({"teacher": {"path": "a", "own": "base"}}, "got path and own"),
        ({"dynamic_sampling": True}, "dynamic_sampling works on rewards, whose reward_weight is 0"),
        ({"kl": {"coef": 0.1, "kind": "k1", "place": "reward"}}, "kl.place: reward works on"),
        ({"teacher": {}}, "got none of them"),
        ({"teacher": {"url": "http://127.0.0.1:1/v1"}}, "also needs model"),
        ({"teacher": {"path": "a", "model": "b"}}, "goes with url"),
        ({"teacher": {"path": "a", "hint": "x", "hint_text": "no"}}, "must contain {hint}"),
    ],
)
def test_a_block_that_cannot_teach_is_refused(block: dict[str, Any], complaint: str) -> None:
    with pytest.raises(RecipeError, match=complaint):
        build(**block)


def test_best_of_n_learns_the_best_rewarded_reply_of_each_group() -> None:
    block = {"name": "rejection_sampling", "advantage": {"name": "best_of_n"}}
    cls, config = algorithms.resolve(block, "algorithm")
    algorithm = cls(config)
    rewards_B = torch.tensor([0.0, 2.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    groups_B = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    mask_BT = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 0], [1, 1], [1, 0], [1, 1]])
    advantages_BT, _ = algorithm.advantages(rewards_B, groups_B, mask_BT)
    assert advantages_BT[:, 0].tolist() == [0, 3.5, 0, 0, 0, 3.5, 0], "7 rows, of which 2 are kept"
    log_probs_BT = torch.full((7, 2), -1.0)
    log_probs_BT[1] = -2.0
    loss, _ = algorithm.loss(
        log_probs_BT, log_probs_BT, advantages_BT, mask_BT, None, None, Denominators(11, 7, 2)
    )
    assert float(loss) == pytest.approx((2.0 + 1.0) / 2), "the mean of -log pi over kept rows"
