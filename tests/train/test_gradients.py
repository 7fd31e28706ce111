"""A gradient in a narrower format joins a sum piece by piece, with the result of adding it as a
whole; all gradients are clipped by one norm."""

import pytest
import torch
from torch import Tensor

from rl_core.train import gradients
from rl_core.train.gradients import add_gradient, clip_gradients

SHAPES = [(), (1,), (700,), (90, 7), (2, 300), (5, 4, 33)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_pieces_add_up_to_the_whole(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gradients, "PIECE", 64)
    torch.manual_seed(0)
    total, gradient = torch.randn(shape), torch.randn(shape).to(dtype)
    expected = total + gradient.float()
    add_gradient(total, gradient)
    assert torch.equal(total, expected)


def turned(rows: int, columns: int) -> Tensor:
    """A matrix that lies column by column."""
    return torch.randn(columns, rows).t()


def test_the_order_in_memory_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "PIECE", 64)
    for total, gradient in (
        (turned(50, 9), torch.randn(50, 9)),
        (torch.randn(50, 9), turned(50, 9)),
    ):
        narrow = gradient.bfloat16()
        expected = total + narrow.float()
        add_gradient(total, narrow)
        assert torch.equal(total, expected)


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_gradients_are_clipped_to_one_norm_over_all_parameters(max_norm: float) -> None:
    torch.manual_seed(0)
    ours, theirs = ([torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES] for _ in range(2))
    for one, other in zip(ours, theirs, strict=True):
        one.grad = torch.randn(one.shape)
        other.grad = one.grad.clone()
    before = clip_gradients(ours, max_norm, torch.device("cpu"))
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm)
    assert before == pytest.approx(float(expected), rel=1e-6)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
