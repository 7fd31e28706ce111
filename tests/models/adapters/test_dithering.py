"""A change of weights that is smaller than the format's steps survives their rounding in the
mean."""

import pytest
import torch

from rl_core.models.adapters.dithering import AT_ONCE, dithered


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_small_changes_are_kept_in_the_mean(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    base = (torch.randn(400, 300) * 0.05).to(dtype).float()
    limits = torch.finfo(dtype)
    step = base.abs().clamp_min(limits.tiny) * limits.eps
    change = torch.randn(400, 300) * 0.1 * step
    nearest = (base + change).to(dtype).float() - base
    kept = dithered(base + change, dtype, "a").float() - base
    assert (nearest * change).sum() < 0.5 * (change * change).sum(), "the test shows nothing"
    assert float((kept * change).sum()) == pytest.approx(float((change * change).sum()), rel=0.05)
    assert (kept.abs() <= 1.01 * step).all(), "rounded to a neighbour"


def test_what_stands_on_the_steps_stays_and_names_have_thresholds_of_their_own() -> None:
    weight = torch.randn(64, 64).bfloat16()
    assert torch.equal(dithered(weight.float(), torch.bfloat16, "a"), weight)
    odd = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0])
    torch.testing.assert_close(
        dithered(odd, torch.bfloat16, "a"), odd.bfloat16(), rtol=0, atol=0, equal_nan=True
    )
    between = torch.full((64, 64), 1 + 2**-9)
    first, second = (dithered(between, torch.bfloat16, name) for name in "ab")
    assert torch.equal(first, dithered(between, torch.bfloat16, "a"))
    assert not torch.equal(first, second)


def test_parts_that_are_rounded_one_after_the_other_go_on_with_the_same_thresholds() -> None:
    weight = torch.full((AT_ONCE + 5,), 1 + 2**-9)
    ends = dithered(weight, torch.bfloat16, "a")
    middle = dithered(weight[: AT_ONCE - 5], torch.bfloat16, "a")
    assert torch.equal(ends[: AT_ONCE - 5], middle)
    assert ends.float().mean() == pytest.approx(1 + 2**-9, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wide_formats_take_the_number_itself(dtype: torch.dtype) -> None:
    weight = torch.randn(5, 7)
    assert torch.equal(dithered(weight, dtype, "a"), weight.to(dtype))
