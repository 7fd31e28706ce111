"""Rotary embeddings: the same numbers as transformers', gradients that are those of float64, and whom it replaces."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.gpt_neox import modeling_gpt_neox
from transformers.models.llama import modeling_llama

from rl_core.kernels.rotary import Rotation, use_quick_rotations

SMALL = {"vocab_size": 16, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}


def written_out(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    low, high = states.chunk(2, -1)
    return states * cos + torch.cat([-high, low], -1) * sin


def theirs_is_not_asked(*_: object) -> tuple[Tensor, Tensor]:
    raise AssertionError("what transformers has is slower")


def drawn(heads: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """States, [2, heads, 5, 8], which lie as a product left them, and angles that differ between the halves."""
    generator = torch.Generator().manual_seed(heads)
    states = torch.randn(2, 5, heads * 8, generator=generator).to(dtype).view(2, 5, heads, 8).transpose(1, 2)
    angles = torch.rand(2, 5, 8, generator=generator) * 6
    return states, angles.cos().to(dtype), angles.sin().to(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_gives_what_is_written_out_and_the_gradients_of_float64(dtype: torch.dtype):
    query, cos, sin = drawn(4, dtype)
    key = drawn(2, dtype)[0]
    query, key = query.requires_grad_(), key.requires_grad_()
    turned = Rotation(theirs_is_not_asked)(query, key, cos, sin)
    with torch.no_grad():
        quiet = Rotation(theirs_is_not_asked)(query, key, cos, sin)
    # One rounding of numbers up to 8, where transformers has three.
    tolerance = 2**-7 if dtype == torch.bfloat16 else 1e-6
    for states, learning, sampling in zip((query, key), turned, quiet, strict=True):
        exact = states.detach().double().requires_grad_()
        wanted = written_out(exact, *(angle.double()[:, None] for angle in (cos, sin)))
        assert torch.equal(learning, sampling), "what is sampled from and what is trained differ"
        assert learning.stride() == states.stride(), "heads lie where they lay"
        torch.testing.assert_close(learning.double(), wanted, rtol=tolerance, atol=tolerance)
        slope = torch.linspace(-1, 1, states.numel()).to(dtype).view(states.shape)
        learning.backward(slope)
        wanted.backward(slope.double())
        assert states.grad is not None and exact.grad is not None and states.grad.dtype == dtype
        torch.testing.assert_close(states.grad.double(), exact.grad, rtol=tolerance, atol=tolerance)


def test_its_gradients_are_those_of_finite_differences():
    states, cos, sin = drawn(1, torch.float64)
    rotate = Rotation(theirs_is_not_asked)
    assert torch.autograd.gradcheck(lambda x: rotate(x, x, cos, sin)[0], states.requires_grad_())


def test_heads_may_come_after_the_positions():
    states, cos, sin = drawn(3, torch.float32)
    ours = Rotation(theirs_is_not_asked)(states.transpose(1, 2), states.transpose(1, 2), cos, sin, 2)[0]
    torch.testing.assert_close(ours.transpose(1, 2), written_out(states, cos[:, None], sin[:, None]))


@pytest.mark.parametrize("case", ["part", "dtype", "device"])
def test_what_it_is_not_made_for_is_left_to_transformers(case: str):
    states, cos, sin = drawn(2, torch.float32)
    if case == "part":
        cos, sin = cos[..., :4], sin[..., :4]
    elif case == "dtype":
        states = states.bfloat16()
    else:
        states, cos, sin = (tensor.to("meta") for tensor in (states, cos, sin))
    answer = states, states
    assert Rotation(lambda *_: answer)(states, states, cos, sin) is answer


def test_a_family_with_this_rotation_is_served_and_one_with_another_is_not(monkeypatch: pytest.MonkeyPatch):
    rotate = modeling_llama.apply_rotary_pos_emb
    written = rotate.theirs if isinstance(rotate, Rotation) else rotate
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", written)
    model = LlamaForCausalLM(LlamaConfig(**SMALL))
    ids = torch.arange(8)[None]
    with torch.no_grad():
        before = model(ids).logits
        assert len(use_quick_rotations(model)) == 1
        assert isinstance(modeling_llama.apply_rotary_pos_emb, Rotation)
        torch.testing.assert_close(model(ids).logits, before)
    assert len(use_quick_rotations(model)) == 0, "it is what it should be already"
    monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", lambda q, k, cos, sin, unsqueeze_dim=1: (q, k))
    assert len(use_quick_rotations(model)) == 0, "this one does not turn"
    monkeypatch.setattr(modeling_gpt_neox, "apply_rotary_pos_emb", lambda q, k, cos, sin: (q, k))
    assert len(use_quick_rotations(GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL)))) == 0, "it takes something else"
