import math

import pytest
import torch

from rl_core.algorithms import Aggregation, Denominators, KlKind
from rl_core.algorithms.terms import aggregate, clipped_surrogate, kl_penalty, masked_mean, ratio
from tests.algorithms.denominators import denominators_of
from tests.algorithms.reference import kl


def test_clipped_surrogate_by_hand() -> None:
    ratio_BT = torch.tensor([[1.5, 0.5, 1.5, 0.5, 1.1]])
    advantages_BT = torch.tensor([[1.0, 1.0, -1.0, -1.0, 2.0]])
    loss_BT = clipped_surrogate(ratio_BT, advantages_BT, 0.2, 0.2)
    torch.testing.assert_close(loss_BT, torch.tensor([[-1.2, -0.5, 1.5, 0.8, -2.2]]))


def test_dapo_raises_only_the_upper_bound() -> None:
    ratio_BT = torch.tensor([[1.25, 1.5, 0.5]], requires_grad=True)
    loss_BT = clipped_surrogate(ratio_BT, torch.tensor([[1.0, 1.0, -1.0]]), 0.2, 0.28)
    torch.testing.assert_close(loss_BT, torch.tensor([[-1.25, -1.28, 0.8]]))
    loss_BT.sum().backward()
    assert ratio_BT.grad is not None and ratio_BT.grad.tolist() == [[-1.0, 0.0, 0.0]]


def test_dual_clip_bounds_negative_advantages_alone() -> None:
    ratio_BT, advantages_BT = torch.tensor([[10.0, 2.0, 10.0]]), torch.tensor([[-1.0, -1.0, 1.0]])
    loss_BT = clipped_surrogate(ratio_BT, advantages_BT, 0.2, 0.2, dual_clip=3.0)
    torch.testing.assert_close(loss_BT, torch.tensor([[3.0, 2.0, -1.2]]))


def test_ratio_never_overflows() -> None:
    ratios = ratio(torch.tensor([[0.0, -500.0, 0.0]]), torch.tensor([[-500.0, 0.0, 0.0]]))
    torch.testing.assert_close(ratios, torch.tensor([[math.exp(20), math.exp(-20), 1.0]]))


@pytest.mark.parametrize(
    ("kind", "value", "slope"),
    [(KlKind.K1, -0.5, 1.0), (KlKind.ABS, 0.5, -1.0), (KlKind.K2, 0.125, -0.5),
     (KlKind.K3, math.exp(0.5) - 1.5, 1 - math.exp(0.5))],
)  # fmt: skip
def test_kl_estimates_by_hand(kind: KlKind, value: float, slope: float) -> None:
    for straight_through, gradient in ((False, slope), (True, -0.5)):
        log_probs_BT = torch.tensor([[-1.5]], requires_grad=True)
        kl_BT = kl_penalty(log_probs_BT, torch.tensor([[-1.0]]), kind, straight_through)
        kl_BT.sum().backward()
        assert kl_BT.item() == pytest.approx(value, rel=1e-5)
        assert log_probs_BT.grad is not None and log_probs_BT.grad.item() == pytest.approx(
            gradient, rel=1e-5
        )


@pytest.mark.parametrize("kind", [KlKind.K1, KlKind.ABS, KlKind.K2, KlKind.K3])
@pytest.mark.parametrize("straight_through", [False, True])
def test_kl_gradients_equal_finite_differences(kind: KlKind, straight_through: bool) -> None:
    log_probs_BT = torch.linspace(-3, -0.1, 7, dtype=torch.float64)[None].requires_grad_()
    reference_BT = torch.full((1, 7), -1.0, dtype=torch.float64)
    kl_penalty(log_probs_BT, reference_BT, kind, straight_through).sum().backward()
    measured = "k2" if straight_through else str(kind)
    for value, slope in zip(log_probs_BT[0].tolist(), log_probs_BT.grad[0].tolist(), strict=True):  # pyright: ignore
        above, below = kl(measured, value + 1e-6 + 1.0), kl(measured, value - 1e-6 + 1.0)
        assert slope == pytest.approx((above - below) / 2e-6, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("straight_through", [False, True])
def test_k3_of_one_action_is_ten_at_most_and_has_no_gradient_beyond(straight_through: bool) -> None:
    # d = -30, -3, -2, 10, 12: e^30, e^3 - 4 = 16.1, e^2 - 3, e^-10 + 9, e^-12 + 11.
    d = [-30.0, -3.0, -2.0, 10.0, 12.0]
    log_probs_BT = torch.tensor([d], dtype=torch.float64, requires_grad=True)
    kl_BT = kl_penalty(
        log_probs_BT, torch.zeros(1, 5, dtype=torch.float64), KlKind.K3, straight_through
    )
    kl_BT.sum().backward()
    assert kl_BT[0].tolist() == pytest.approx(
        [10.0, 10.0, math.exp(2) - 3, math.exp(-10) + 9, 10.0]
    )
    slopes = d if straight_through else [0.0, 0.0, 1 - math.exp(2), 1 - math.exp(-10), 0.0]
    assert log_probs_BT.grad is not None and log_probs_BT.grad[0].tolist() == pytest.approx(slopes)


def test_an_exact_kl_cannot_come_from_log_probabilities() -> None:
    with pytest.raises(ValueError, match="k1, abs, k2 or k3"):
        kl_penalty(torch.zeros(1, 1), torch.zeros(1, 1), KlKind.EXACT)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("token-mean", 7 / 3), ("token-sum", 7.0), ("seq-mean-token-sum", 3.5), ("seq-mean-token-sum-norm", 0.35),  # noqa: E501
     ("seq-mean-token-mean", (1.5 + 4.0) / 2)],
)  # fmt: skip
def test_aggregation_by_hand(mode: str, expected: float) -> None:
    loss_BT = torch.tensor([[1.0, 2.0, math.nan], [4.0, math.inf, 9.0], [8.0, 8.0, 8.0]])
    mask_BT = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 0, 0]])
    denominators = denominators_of(mask_BT, max_length=10)
    assert denominators == Denominators(3.0, 2.0, 10)
    assert aggregate(loss_BT, mask_BT, Aggregation(mode), denominators).item() == pytest.approx(
        expected
    )


@pytest.mark.parametrize("mode", list(Aggregation))
def test_a_step_without_any_action_has_loss_zero(mode: Aggregation) -> None:
    mask_BT = torch.zeros(2, 3)
    assert aggregate(torch.ones(2, 3), mask_BT, mode, denominators_of(mask_BT)).item() == 0.0


def test_masked_mean_ignores_what_is_masked() -> None:
    values_BT, mask_BT = torch.tensor([[1.0, 3.0], [math.nan, 5.0]]), torch.tensor([[1, 1], [0, 0]])
    assert masked_mean(values_BT, mask_BT).item() == 2.0
    assert masked_mean(values_BT, mask_BT, dim=1).tolist() == [2.0, 0.0]
