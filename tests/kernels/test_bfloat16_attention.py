"""Attention whose backward pass is whole products gives what attention gives."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from rl_core.kernels import bfloat16_attention
from rl_core.kernels.bfloat16_attention import attend_in_bfloat16, attends_in_bfloat16
from rl_core.kernels.ragged_rows import Rectangle

ROUNDING = 0.01
"""Of bfloat16 in a chain of a few products, relative to the norm of the whole."""


def states(rows: int, heads: int, key_heads: int, length: int) -> list[Tensor]:
    """Query, key, value and the gradient of the result, laid out as a model's are."""
    counts, draw = (heads, key_heads, key_heads, heads), torch.Generator().manual_seed(0)
    return [
        torch.randn(rows, length, count, 32, generator=draw)
        .bfloat16()
        .transpose(1, 2)
        .requires_grad_()
        for count in counts
    ]


def error(found: Tensor, exact: Tensor) -> float:
    """Relative to the norm of what is exact."""
    return ((found.double() - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("scale", [32**-0.5, 0.3])
@pytest.mark.parametrize(
    "shape", [(3, 9, 3, 107), (5, 4, 4, 33), (1, 6, 2, 2), (3, 4, 2, 150), (1, 2, 1, 900)], ids=str
)
def test_result_and_gradients_are_those_of_attention_in_float64(
    shape: tuple[int, int, int, int], scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a batch is cut: three chunks of the first one. The last two are longer than what
    is kept."""
    monkeypatch.setattr(bfloat16_attention, "CHUNK_WEIGHTS", 9 * 107**2)
    *inputs, grad = states(*shape)
    exact = [state.detach().double().requires_grad_() for state in inputs]
    expected = scaled_dot_product_attention(
        exact[0], exact[1], exact[2], is_causal=True, enable_gqa=True, scale=scale
    )
    found = attend_in_bfloat16(inputs[0], inputs[1], inputs[2], scale)
    assert error(found, expected) < ROUNDING
    pairs = zip(
        torch.autograd.grad(found, inputs, grad),
        torch.autograd.grad(expected, exact, grad.double()),
        strict=True,
    )
    for ours, theirs in pairs:
        assert ours.dtype == torch.bfloat16
        assert error(ours, theirs) < ROUNDING


@pytest.mark.parametrize("kept", [128, 0])
def test_queries_that_stand_later_in_their_rows_see_what_is_before_them(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bfloat16_attention, "CHUNK_WEIGHTS", 4 * 12 * 30)
    monkeypatch.setattr(bfloat16_attention, "KEPT_LENGTH", kept)
    rectangle = Rectangle(12, 30, (18, 5, 0))
    mask = rectangle.mask(None, torch.float32, torch.device("cpu"))
    assert mask is not None
    query, _, _, grad = (
        state[:, :, :12].detach().requires_grad_() for state in states(3, 4, 2, 30)
    )
    inputs = [query, *states(3, 4, 2, 30)[1:3]]
    exact = [state.detach().double().requires_grad_() for state in inputs]
    expected = scaled_dot_product_attention(*exact, mask.double(), enable_gqa=True, scale=0.2)
    found = attend_in_bfloat16(inputs[0], inputs[1], inputs[2], 0.2, mask)
    assert error(found, expected) < ROUNDING
    pairs = zip(
        torch.autograd.grad(found, inputs, grad),
        torch.autograd.grad(expected, exact, grad.double()),
        strict=True,
    )
    for ours, theirs in pairs:
        assert error(ours, theirs) < ROUNDING


@pytest.mark.parametrize("kept", [128, 0])
def test_scores_that_would_overflow_behind_the_mask_leave_no_trace(
    kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later position may fit a query much better than all that it sees."""
    monkeypatch.setattr(bfloat16_attention, "KEPT_LENGTH", kept)
    query, key, value, grad = states(1, 1, 1, 40)
    with torch.no_grad():
        key[:, :, -1] = 400 * query[:, :, 3]
    found = torch.autograd.grad(
        attend_in_bfloat16(query, key, value, 1.0), [query, key, value], grad
    )
    assert all(bool(one.isfinite().all()) for one in found)


@pytest.mark.parametrize("length", [100, 200, 900])
def test_large_scores_are_rounded_no_more_than_torch_rounds_them(length: int) -> None:
    """Scores around 30, of which bfloat16 has a fourth: what is subtracted first decides."""
    query, key, value, _ = (state.detach() for state in states(4, 2, 2, length))
    key += 3
    query += 1
    exact = scaled_dot_product_attention(
        query.double(), key.double(), value.double(), is_causal=True, scale=0.3
    )
    torchs = scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.3)
    assert error(attend_in_bfloat16(query, key, value, 0.3), exact) < 3 * error(torchs, exact)


def test_it_is_for_plain_causal_rows_where_a_processor_multiplies_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    query = states(1, 2, 2, 8)[0]
    plain = {"is_causal": True, "scaling": 0.5}
    assert attends_in_bfloat16(query, query, **plain)
    assert not attends_in_bfloat16(query.float(), query, **plain)
    most = bfloat16_attention.MAX_WEIGHTS // (2 * 8)
    assert attends_in_bfloat16(query, query[:, :, :1].expand(-1, -1, most, -1), **plain)
    assert not attends_in_bfloat16(query, query[:, :, :1].expand(-1, -1, most + 1, -1), **plain)
    for other in (
        {"is_causal": False},
        {"dropout": 0.1},
        {"scaling": None},
        {"position_bias": query},
    ):
        assert not attends_in_bfloat16(query, query, **plain | other)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert not attends_in_bfloat16(query, query, **plain)
