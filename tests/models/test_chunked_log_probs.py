"""Chunked log-probabilities equal the plain way in value, entropy and gradient, and no table of
logits exists."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rl_core.models import chunked_log_probs
from rl_core.models.chunked_log_probs import linear_log_probs

N, H, V = 13, 7, 1111
"""Five chunks of 256 words, the last one short."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_log_probs, "CHUNK_ELEMENTS", N * 256)


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    hidden_NH, weight_VH = (
        3 * torch.randn(size, H, generator=random, dtype=torch.float64) for size in (N, V)
    )
    # The first and last word of a chunk and of the vocabulary are among the targets.
    targets_N = torch.cat(
        [torch.tensor([0, 255, 256, V - 1]), torch.randint(0, V, (N - 4,), generator=random)]
    )
    return hidden_NH.to(dtype), weight_VH.to(dtype), targets_N


def plain(
    hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    log_probs_NV = (hidden_NH @ weight_VH.t() / temperature).log_softmax(-1)
    return log_probs_NV.gather(-1, targets_N[:, None])[:, 0], -(
        log_probs_NV.exp() * log_probs_NV
    ).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("trained_head", [True, False])
@pytest.mark.parametrize("entropy_grad", [True, False])
@pytest.mark.parametrize("kept_words", [0, 600, V])
def test_values_and_gradients_equal_the_plain_way(
    temperature: float,
    trained_head: bool,
    entropy_grad: bool,
    kept_words: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunked_log_probs, "KEPT_BYTES", kept_words * N * 8)
    found = []
    for way in ("plain", "chunked"):
        hidden_NH, weight_VH, targets_N = inputs()
        hidden_NH.requires_grad_()
        weight_VH.requires_grad_(trained_head)
        if way == "plain":
            log_probs_N, entropy_N = plain(hidden_NH, weight_VH, targets_N, temperature)
        else:
            log_probs_N, entropy_N = linear_log_probs(
                hidden_NH,
                weight_VH,
                targets_N,
                temperature=temperature,
                with_entropy=True,
                entropy_grad=entropy_grad,
            )
        assert entropy_N is not None
        slopes_N = torch.linspace(-1, 1, N, dtype=torch.float64)
        loss = (slopes_N * log_probs_N).sum() + (
            (2 * slopes_N * entropy_N).sum() if entropy_grad else 0.0
        )
        loss.backward()
        found.append((log_probs_N.detach(), entropy_N.detach(), hidden_NH.grad, weight_VH.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert (found[1][3] is not None) is trained_head


@pytest.mark.parametrize("kept_words", [0, V])
@pytest.mark.parametrize("favourite", [7.0, 14.0, 200.0])
def test_gradients_survive_a_word_that_is_nearly_sure(
    favourite: float, kept_words: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slope 1 - p is 0.5, 0.001 and nothing; other chunks' share of the probability goes down
    to e^-200."""
    monkeypatch.setattr(chunked_log_probs, "KEPT_BYTES", kept_words * N * 8)
    _, weight_VH, targets_N = inputs()
    weight_VH[:, 0] = 0
    weight_VH[300, 0] = 1
    hidden_NH = torch.zeros(N, H, dtype=torch.float64)
    hidden_NH[:, 0] = favourite
    targets_N[::2] = 300
    found = []
    for dtype in (torch.float64, torch.bfloat16):
        leaves = [
            one.to(torch.bfloat16).to(dtype).requires_grad_() for one in (hidden_NH, weight_VH)
        ]
        log_probs_N = (plain if dtype is torch.float64 else linear_log_probs)(
            *leaves, targets_N, temperature=1.0
        )[0]
        # The other rows' slopes would drown theirs in the head's gradient.
        log_probs_N[::2].sum().backward()
        found.append([leaf.grad.double() for leaf in leaves if leaf.grad is not None])
    for exact, ours in zip(*found, strict=True):
        assert ((ours - exact).norm(dim=1) <= 0.03 * exact.norm(dim=1) + 1e-5).all()


def test_gradient_equals_finite_differences() -> None:
    hidden_NH, weight_VH, targets_N = inputs()
    weight_VH = weight_VH[:300].clone().requires_grad_()
    hidden_NH = hidden_NH[:4].clone().requires_grad_()

    def both(hidden: Tensor, weight: Tensor) -> Tensor:
        log_probs_N, entropy_N = linear_log_probs(
            hidden,
            weight,
            targets_N[:4] % 300,
            temperature=1.3,
            with_entropy=True,
            entropy_grad=True,
        )
        assert entropy_N is not None
        return log_probs_N + entropy_N

    assert torch.autograd.gradcheck(both, (hidden_NH, weight_VH), fast_mode=True)


class Widest(TorchDispatchMode):
    """The most elements of any tensor that is not an input's or a gradient's size."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, Tensor) and tensor.shape[:1] == (N,):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("trained_head", [True, False])
def test_no_more_logits_than_a_chunk_exist_at_once(trained_head: bool) -> None:
    hidden_NH, weight_VH, targets_N = inputs(torch.float32)
    hidden_NH.requires_grad_()
    weight_VH.requires_grad_(trained_head)
    with Widest() as widest:
        log_probs_N, entropy_N = linear_log_probs(
            hidden_NH, weight_VH, targets_N, with_entropy=True
        )
        log_probs_N.sum().backward()
    assert entropy_N is not None and not entropy_N.requires_grad
    assert widest.elements == N * 256


def test_half_precision_agrees_and_gives_float32() -> None:
    exact_N, _ = linear_log_probs(*inputs())
    half_N, _ = linear_log_probs(*inputs(torch.bfloat16))
    assert half_N.dtype == torch.float32
    torch.testing.assert_close(half_N.double(), exact_N, rtol=0.03, atol=0.3)


def test_nothing_selected_gives_nothing() -> None:
    hidden_NH, weight_VH, targets_N = inputs()
    log_probs_N, entropy_N = linear_log_probs(
        hidden_NH[:0].requires_grad_(), weight_VH, targets_N[:0]
    )
    log_probs_N.sum().backward()
    assert log_probs_N.shape == (0,) and entropy_N is None
