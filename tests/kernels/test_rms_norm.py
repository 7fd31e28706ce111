"""RMSNorm: the same numbers as transformers', gradients that are those of float64, and which norms
it replaces."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from rl_core.kernels.rms_norm import RMSNorm, use_quick_norms

EPS = 1e-5


def written_out(states: Tensor, weight: Tensor) -> Tensor:
    return weight * states * (states.square().mean(-1, keepdim=True) + EPS).rsqrt()


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """States, weight and the gradient of the result."""
    generator = torch.Generator().manual_seed(len(shape))
    draw = (torch.randn(size, generator=generator).to(dtype) for size in (shape, shape[-1:], shape))
    states, weight, grad = draw
    return (states * 3 + 1).requires_grad_(), (weight + 1).requires_grad_(), grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(5, 64), (2, 7, 576), (1, 3, 2, 16)])
def test_it_gives_what_transformers_gives_and_the_gradients_of_float64(
    shape: tuple[int, ...], dtype: torch.dtype
):
    states, weight, grad = drawn(shape, dtype)
    theirs = LlamaRMSNorm(shape[-1], EPS)
    theirs.weight = nn.Parameter(weight.detach())
    ours = RMSNorm(nn.Parameter(weight.detach()), EPS)
    with torch.no_grad():
        quiet = ours(states)
    learning = ours(states)
    torch.testing.assert_close(quiet, theirs(states), rtol=1e-6, atol=1e-6)
    assert torch.equal(learning, quiet), "what is sampled from and what is trained differ"

    learning.backward(grad)
    exact_states, exact_weight = (
        one.detach().double().requires_grad_() for one in (states, weight)
    )
    written_out(exact_states, exact_weight).backward(grad.double())
    assert states.grad is not None and ours.weight.grad is not None
    assert states.grad.dtype == ours.weight.grad.dtype == dtype
    for got, wanted in ((states.grad, exact_states.grad), (ours.weight.grad, exact_weight.grad)):
        assert wanted is not None
        far = (got.double() - wanted).norm() / wanted.norm()
        assert far < (5e-3 if dtype == torch.bfloat16 else 1e-6)


def test_its_gradients_are_those_of_finite_differences():
    states, weight, _ = drawn((3, 8), torch.float64)
    ours = RMSNorm(nn.Parameter(weight), EPS)
    assert torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(ours, {"weight": w}, x), (states, weight)
    )


@pytest.mark.parametrize("frozen", ["states", "weight"])
def test_what_is_frozen_gets_no_gradient_and_the_other_its_own(frozen: str):
    gradients = {}
    for name in (frozen, ""):
        states, weight, grad = drawn((4, 32), torch.float32)
        inputs = {"states": states.detach(), "weight": nn.Parameter(weight.detach())}
        for key, value in inputs.items():
            value.requires_grad_(key != name)
        RMSNorm(inputs["weight"], EPS)(inputs["states"]).backward(grad)
        gradients[name] = {key: value.grad for key, value in inputs.items()}
    other = "weight" if frozen == "states" else "states"
    assert gradients[frozen][frozen] is None
    assert torch.equal(gradients[frozen][other], gradients[""][other])


def test_the_norms_of_a_model_give_way_and_their_names_stay(tiny_model_dir: Path):
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = torch.arange(4, 24)[None]
    with torch.no_grad():
        logits = model(ids).logits
        assert len(use_quick_norms(model)) == 5, "two in each of two layers, and the last one"
        torch.testing.assert_close(model(ids).logits, logits, rtol=1e-5, atol=1e-5)
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert len(use_quick_norms(model)) == 0, "they are what they should be already"


def test_a_norm_that_computes_something_else_stays():
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = Gemma2Config(
        vocab_size=50, num_key_value_heads=1, head_dim=16, pad_token_id=0, **shape
    )
    model = Gemma2ForCausalLM(config)  # its norms multiply with one more than their weight
    assert len(use_quick_norms(model)) == 0
