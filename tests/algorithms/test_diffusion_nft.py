"""DiffusionNFT: by hand, against loops, gradients, splits and padding."""

import math

import pytest
import torch
from torch import Tensor

from rl_core.algorithms import Denominators
from rl_core.algorithms.diffusion_nft import nft_errors
from tests.algorithms.batches import build
from tests.algorithms.denominators import denominators_of


def plain_errors(
    v: list, old: list, noisy: list, clean: list, time: float, beta: float
) -> list[float]:
    found = []
    for sign in (1, -1):
        guesses = []
        for one, two, x in zip(v, old, noisy, strict=True):
            mixed = beta * one + (1 - beta) * two if sign == 1 else (1 + beta) * two - beta * one
            guesses.append(x - time * mixed)
        scale = sum(abs(g - c) for g, c in zip(guesses, clean, strict=True)) / len(clean)
        found.append(
            sum((g - c) ** 2 for g, c in zip(guesses, clean, strict=True))
            / len(clean)
            / max(scale, 1e-5)
        )
    return found


def latents(shape: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(2, *shape, generator=random, dtype=torch.float64) for _ in range(4)]


def test_errors_by_hand():
    # x_t 1, clean 0, t 1/2, v 1, old 0, beta 1: v+ = 1, v- = -1, guesses 1/2 and 3/2, squared over
    # itself.
    one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    positive, negative = nft_errors(one, zero, one, zero, torch.tensor([0.5]), beta=1.0)
    assert (positive.item(), negative.item()) == (0.5, 1.5)


@pytest.mark.parametrize("shape", [(4, 3, 3), (2, 3, 2, 2)], ids=["image", "video"])
def test_errors_equal_loops_for_any_latent_rank(shape: tuple[int, ...]):
    velocity, old, noisy, clean = latents(shape)
    time_N = torch.tensor([0.3, 0.8], dtype=torch.float64)
    errors = nft_errors(velocity, old, noisy, clean, time_N, beta=0.7)
    for n in range(2):
        flat = [tensor[n].flatten().tolist() for tensor in (velocity, old, noisy, clean)]
        expected = plain_errors(*flat, time_N[n].item(), 0.7)
        assert [error[n].item() for error in errors] == pytest.approx(expected, rel=1e-12)


def test_the_gradient_holds_the_scale_fixed():
    velocity, old, noisy, clean = latents((3,))
    time_N = torch.tensor([0.3, 0.8], dtype=torch.float64)
    velocity.requires_grad_()
    positive, _ = nft_errors(velocity, old, noisy, clean, time_N, beta=0.7)
    positive.sum().backward()
    guess = noisy - time_N[:, None] * (0.7 * velocity.detach() + 0.3 * old)
    scale = (guess - clean).abs().mean(1, keepdim=True)
    torch.testing.assert_close(
        velocity.grad, 2 * (guess - clean) * -time_N[:, None] * 0.7 / 3 / scale
    )


def loss(
    errors: list[Tensor], advantages_BT: Tensor, mask_BT: Tensor, denominators: Denominators
) -> Tensor:
    return build("diffusion_nft", beta=0.5).loss(
        None, None, advantages_BT, mask_BT, None, None, denominators,  # pyright: ignore[reportArgumentType]
        positive_errors_BT=errors[0], negative_errors_BT=errors[1],
    )[0]  # fmt: skip


def test_loss_equals_loops_splits_and_ignores_padding():
    random = torch.Generator().manual_seed(0)
    errors = [torch.rand(4, 3, generator=random, dtype=torch.float64) for _ in range(2)]
    advantages_BT = 6 * torch.randn(4, 3, generator=random, dtype=torch.float64)
    mask_BT = torch.tensor([[1, 1, 1], [1, 0, 1], [0, 0, 0], [1, 1, 0]])
    total, count = 0.0, 0
    for b in range(4):
        for t in range(3):
            if mask_BT[b, t]:
                r = min(max(advantages_BT[b, t].item(), -5), 5) / 10 + 0.5
                total += 5 * (r * errors[0][b, t].item() + (1 - r) * errors[1][b, t].item()) / 0.5
                count += 1
    denominators = denominators_of(mask_BT)
    dirty = [tensor.masked_fill(mask_BT == 0, math.nan) for tensor in (*errors, advantages_BT)]
    halves = [
        loss([dirty[0][r], dirty[1][r]], dirty[2][r], mask_BT[r], denominators)
        for r in torch.arange(4).view(2, 2)
    ]
    assert sum(half.item() for half in halves) == pytest.approx(total / count, rel=1e-12)


def test_missing_errors_are_named_and_one_update_is_made_per_rollout():
    algorithm = build("diffusion_nft")
    assert not algorithm.supports_multi_update and algorithm.rolls_out_average
    ones_BT = torch.ones(1, 2)
    with pytest.raises(ValueError, match=r"negative_errors_BT must be given .*\(1, 2\).*nothing"):
        algorithm.loss(
            ones_BT,
            ones_BT,
            ones_BT,
            ones_BT,
            None,
            None,
            Denominators(1, 1, 1),
            positive_errors_BT=ones_BT,
        )
