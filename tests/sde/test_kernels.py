"""Every kernel: by hand, against floats, gradients, rows, ranks of latents, precision, and what it
keeps invariant."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.sde import (
    NoiseRecipe,
    cps_step,
    dance_step,
    dpm2_step,
    euler_step,
    flow_step,
    gaussian_kl,
    sigmas,
)
from tests.sde import reference

KERNELS = {
    "flow": (flow_step, reference.flow),
    "dance": (dance_step, reference.dance),
    "cps": (cps_step, reference.cps),
}
names = pytest.mark.parametrize("name", sorted(KERNELS))
SHAPES = pytest.mark.parametrize("shape", [(4, 3, 3), (2, 3, 2, 2)], ids=["image", "video"])


def settings(name: str) -> dict[str, Any]:
    return {"eta": 0.7, **({"sigma_first": 0.9} if name == "flow" else {})}


def latents(*shape: int, seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=random, dtype=torch.float64) for _ in range(3)]


def test_kernels_by_hand():
    x, v, to = torch.tensor([[2.0]]), torch.tensor([[1.0]]), torch.tensor([[1.0]])
    # sigma 1/2 -> 1/4, eta 1: a = 1; mean 2 (1 - 1/4) + (1 + 1/2)(-1/4) = 9/8; std 1/2; z = -1/4.
    flow = flow_step(x, v, 0.5, 0.25, eta=1.0, sigma_first=0.9, next_sample=to)
    assert (flow.mean.item(), flow.std.item()) == (1.125, 0.5)
    assert flow.log_prob is not None
    assert flow.log_prob.item() == pytest.approx(
        -1 / 32 + math.log(2) - 0.5 * math.log(2 * math.pi)
    )
    # At sigma 1 the second level 0.75 stands in the denominator alone, a = 1 / sqrt(1/4) = 2 (not
    # sqrt 3): mean 2 (1 - 4/2 1/4) + (1)(-1/4) = 3/4, std 2 sqrt(1/4) = 1, z = 1/4.
    first = flow_step(x, v, 1.0, 0.75, eta=1.0, sigma_first=0.75, next_sample=to)
    assert (first.mean.item(), first.std.item()) == (0.75, 1.0)
    assert first.log_prob is not None
    assert first.log_prob.item() == pytest.approx(-1 / 32 - 0.5 * math.log(2 * math.pi))
    # a = 2 throughout: mean 2 (1 - 1) + (1 + 2)(-1/4), std 1.
    dance = dance_step(x, v, 0.5, 0.25, eta=2.0, next_sample=to)
    assert (dance.mean.item(), dance.std.item()) == (-0.75, 1.0)
    # eta 1/3: sin 30 degrees: std 1/8; (2 - 1/2) 3/4 + (2 + 1/2) sqrt(1/16 - 1/64).
    cps = cps_step(x, v, 0.5, 0.25, eta=1 / 3, next_sample=to)
    assert (cps.mean.item(), cps.std.item()) == (
        pytest.approx(1.125 + 2.5 * math.sqrt(3) / 8),
        pytest.approx(0.125),
    )
    euler = euler_step(x, v, 0.5, 0.25)
    assert euler.sample.item() == 1.75 and euler.log_prob is None and euler.std.item() == 0.0
    # First order: 1/2 * 2 + (3/4 - 1/4) * (2 - 1/2), the same as Euler.
    assert dpm2_step(x, v, 0.5, 0.25)[0].sample.item() == 1.75


@names
@SHAPES
def test_scores_equal_plain_floats(name: str, shape: tuple[int, ...]):
    kernel, plain = KERNELS[name]
    x, v, to = latents(3, *shape)
    # Each row at a level of its own; the first starts at pure noise.
    levels, following = [1.0, 0.6, 0.3], [0.9, 0.5, 0.1]
    step = kernel(
        x, v, torch.tensor(levels), torch.tensor(following), **settings(name), next_sample=to
    )
    assert step.log_prob is not None
    for b in range(3):
        pairs = [
            plain(float(p), float(q), levels[b], following[b], 0.7, 0.9)
            for p, q in zip(x[b].flatten(), v[b].flatten(), strict=True)
        ]
        torch.testing.assert_close(
            step.mean[b].flatten(),
            torch.tensor([mean for mean, _ in pairs], dtype=torch.float64),
            rtol=1e-6,
            atol=1e-6,
        )
        assert step.std[b].item() == pytest.approx(pairs[0][1], rel=1e-6)
        densities = [
            reference.log_density(float(z), mean, std)
            for z, (mean, std) in zip(to[b].flatten(), pairs, strict=True)
        ]
        assert step.log_prob[b].item() == pytest.approx(sum(densities) / len(densities), rel=1e-6)


@names
def test_gradient_equals_finite_differences(name: str):
    kernel, _ = KERNELS[name]
    x, v, to = latents(2, 3)
    levels = (torch.tensor([0.8, 0.5]).double(), torch.tensor([0.5, 0.2]).double())

    def score(velocity: Tensor) -> Tensor:
        log_prob = kernel(x, velocity, *levels, **settings(name), next_sample=to).log_prob
        assert log_prob is not None
        return log_prob

    assert torch.autograd.gradcheck(score, v.requires_grad_())


@names
def test_what_was_drawn_scores_the_same_and_repeats(name: str):
    kernel, _ = KERNELS[name]
    x, v, _ = (tensor.float() for tensor in latents(2, 4, 3, 3))
    drawn, again = (
        kernel(
            x, v, 0.8, 0.6, **settings(name), generator=NoiseRecipe(1, 2, "a").generator("steps")
        )
        for _ in range(2)
    )
    assert torch.equal(drawn.sample, again.sample)
    scored = kernel(x, v, 0.8, 0.6, **settings(name), next_sample=drawn.sample)
    assert drawn.log_prob is not None and scored.log_prob is not None
    assert torch.equal(drawn.log_prob, scored.log_prob)
    deviation = ((drawn.sample - drawn.mean) / drawn.std[0]).std()
    assert 0.7 < deviation < 1.3


@names
def test_rows_are_independent_and_half_precision_is_computed_in_float32(name: str):
    kernel, _ = KERNELS[name]
    x, v, to = latents(3, 4, 2, 2)
    levels, following = torch.tensor([0.9, 0.6, 0.3]), torch.tensor([0.7, 0.5, 0.1])

    def scores(order: list[int], dtype: torch.dtype) -> Tensor:
        parts = (tensor[order].to(dtype) for tensor in (x, v))
        step = kernel(
            *parts,
            levels[order],
            following[order],
            **settings(name),
            next_sample=to[order].to(dtype),
        )
        assert step.log_prob is not None
        return step.log_prob

    exact_B = scores([0, 1, 2], torch.float64)
    assert torch.equal(scores([2, 0, 1], torch.float64), exact_B[[2, 0, 1]])
    assert scores([0, 1, 2], torch.bfloat16).dtype == torch.float32
    torch.testing.assert_close(
        scores([0, 1, 2], torch.float32).double(), exact_B, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(
        scores([0, 1, 2], torch.bfloat16).double(), exact_B, rtol=0.05, atol=0.05
    )


def test_the_sdes_keep_the_marginals_of_the_flow():
    # For x_0 = 0 the true velocity at x_sigma = sigma eps is x / sigma; every kernel must keep the
    # variance sigma^2.
    x = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0))
    levels = sigmas(100, 3.0).tolist()
    for name, (kernel, _) in KERNELS.items():
        generator = torch.Generator().manual_seed(1)
        extra = {"eta": 0.7, **({"sigma_first": levels[1]} if name == "flow" else {})}
        sample = x * levels[1]
        for here, there in pairwise(levels[1:71]):
            sample = kernel(sample, sample / here, here, there, **extra, generator=generator).sample
        assert sample.std().item() == pytest.approx(levels[70], rel=0.03), name


def test_dpm2_equals_the_textbook_form_and_is_of_second_order():
    levels = [0.9, 0.7, 0.4, 0.2]
    x, previous = torch.tensor([[1.5]], dtype=torch.float64), None
    velocities = [0.3, -0.4, 0.8]
    for v, here, there in zip(velocities, levels[:-1], levels[1:], strict=True):
        step, previous = dpm2_step(x, torch.full_like(x, v), here, there, previous=previous)
        x = step.sample
    assert x.item() == pytest.approx(
        reference.dpm_solver([(1.5, v) for v in velocities], levels), rel=1e-12
    )

    def spread(sigma: float) -> float:
        # Data N(0, 1/4): the marginal's deviation, which every sample keeps its share of.
        return math.sqrt((1 - sigma) ** 2 / 4 + sigma**2)

    def error(num_steps: int, second: bool) -> float:
        sample, before = torch.full((1, 1), spread(0.95), dtype=torch.float64), None
        course = torch.linspace(0.95, 0.2, num_steps + 1, dtype=torch.float64).tolist()
        for here, there in pairwise(course):
            v = sample * (here - (1 - here) / 4) / spread(here) ** 2
            one, after = dpm2_step(sample, v, here, there, previous=before)
            sample, before = one.sample, after if second else None
        return abs(sample.item() - spread(0.2))

    # Half the step: half the error of first order, a quarter of second.
    assert error(80, False) / error(40, False) == pytest.approx(0.5, rel=0.1)
    assert error(80, True) / error(40, True) == pytest.approx(0.25, rel=0.15)


def test_kl_between_steps():
    mean, other = torch.zeros(1, 2, 2), torch.full((1, 2, 2), 0.5)
    assert gaussian_kl(mean, other, torch.tensor([0.5])).item() == 0.5
    video = gaussian_kl(*latents(2, 2, 3, 2, 2)[:2], torch.ones(2).double())
    assert video.shape == (2,)


def test_what_cannot_be_scored_is_refused():
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="std 0"):
        cps_step(x, x, 0.5, 0.0, eta=0.5, next_sample=x)
    with pytest.raises(ValueError, match="std 0"):
        euler_step(x, x, 0.5, 0.4, next_sample=x)
    assert cps_step(x, x, 0.5, 0.0, eta=0.5).log_prob is None
    with pytest.raises(ValueError, match="all be stochastic or none"):
        cps_step(x, x, 0.5, torch.tensor([0.0, 0.1]), eta=0.5)
    with pytest.raises(ValueError, match="must fall"):
        dance_step(x, x, 0.5, 0.5, eta=0.5)
    with pytest.raises(ValueError, match="one shape"):
        euler_step(x, torch.zeros(2, 2), 0.5, 0.4)
