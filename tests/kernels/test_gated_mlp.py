"""The gated MLP: what transformers' computes, gradients that are those of float64, and which MLPs
it replaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM, Gemma2Config, Gemma2ForCausalLM, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

from rl_core.kernels.gated_mlp import GatedMLP, use_gated_mlps
from tests.models.saved import num_kept

HIDDEN, BETWEEN = 48, 160


def mlp_of(dtype: torch.dtype) -> LlamaMLP:
    torch.manual_seed(0)
    return LlamaMLP(
        LlamaConfig(hidden_size=HIDDEN, intermediate_size=BETWEEN, num_attention_heads=2)
    ).to(dtype)


def ours_of(theirs: Any) -> GatedMLP:
    return GatedMLP(theirs.gate_proj, theirs.up_proj, theirs.down_proj)


def drawn(dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """States and the gradient of the result."""
    generator = torch.Generator().manual_seed(1)
    states, grad = (torch.randn(2, 50, HIDDEN, generator=generator).to(dtype) for _ in range(2))
    return states.requires_grad_(), grad


def written_out(states: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return (silu(states @ gate.t()) * (states @ up.t())) @ down.t()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_it_gives_what_transformers_gives_and_the_gradients_of_float64(dtype: torch.dtype) -> None:
    theirs, (states, grad) = mlp_of(dtype), drawn(dtype)
    ours = ours_of(theirs)
    with torch.no_grad():
        quiet = ours(states)
    learning = ours(states)
    assert torch.equal(quiet, theirs(states))
    assert torch.equal(learning, quiet), "what is sampled from and what is trained differ"

    inputs = [states, ours.gate_proj.weight, ours.up_proj.weight, ours.down_proj.weight]
    found = torch.autograd.grad(learning, inputs, grad)
    exact = [one.detach().double().requires_grad_() for one in inputs]
    wanted = torch.autograd.grad(written_out(*exact), exact, grad.double())
    for got, right in zip(found, wanted, strict=True):
        assert got.dtype == dtype
        assert got.is_contiguous()
        assert (got.double() - right).norm() / right.norm() < (
            1e-2 if dtype == torch.bfloat16 else 1e-6
        )


def test_its_gradients_are_those_of_finite_differences() -> None:
    ours, (states, _) = ours_of(mlp_of(torch.float64)), drawn(torch.float64)
    weights = dict(ours.named_parameters())

    def call(states: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(ours, dict(zip(weights, values, strict=True)), states)

    assert torch.autograd.gradcheck(call, (states[:, :2], *weights.values()), fast_mode=True)


def test_it_keeps_half_of_what_the_usual_one_keeps() -> None:
    theirs, (states, _) = mlp_of(torch.float32), drawn(torch.float32)
    kept = [num_kept(mlp, BETWEEN, nn.Module.__call__, states) for mlp in (ours_of(theirs), theirs)]
    assert kept[0] * 2 == kept[1] > 0


@pytest.mark.parametrize("frozen", ["states", "gate_proj", "up_proj", "down_proj"])
def test_what_is_frozen_gets_no_gradient_and_the_others_their_own(frozen: str) -> None:
    found = {}
    for name in (frozen, ""):
        ours, (states, grad) = ours_of(mlp_of(torch.float32)), drawn(torch.float32)
        for part, layer in ours.named_children():
            layer.requires_grad_(part != name)
        states = states.detach().requires_grad_(name != "states")
        ours(states).backward(grad)
        found[name] = {"states": states.grad} | {
            part: layer.weight.grad for part, layer in ours.named_children()
        }  # type: ignore[union-attr]
    assert found[frozen].pop(frozen) is None
    for part, gradient in found[frozen].items():
        torch.testing.assert_close(gradient, found[""][part])


def test_a_layer_that_is_more_than_a_product_is_called_as_what_it_is() -> None:
    ours = ours_of(mlp_of(torch.float32))
    seen: list[str] = []
    ours.up_proj.register_forward_hook(lambda *_: seen.append("up"))
    ours(drawn(torch.float32)[0])
    assert seen == ["up"]


def test_the_mlps_of_a_model_give_way_and_their_names_stay(tiny_model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids = torch.arange(4, 24)[None]
    with torch.no_grad():
        logits = model(ids).logits
        assert len(use_gated_mlps(model)) == 2, "one in each layer"
        assert torch.equal(model(ids).logits, logits)
    after = model.state_dict()
    assert [*before] == [*after]
    assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert len(use_gated_mlps(model)) == 0, "they are what they should be already"


def test_an_mlp_that_computes_something_else_stays() -> None:
    shape = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = Gemma2Config(
        vocab_size=50, num_key_value_heads=1, head_dim=16, pad_token_id=0, **shape
    )
    assert len(use_gated_mlps(Gemma2ForCausalLM(config))) == 0, "its gate is no SiLU"


def test_weights_too_small_to_tell_are_told_apart_all_the_same() -> None:
    model = nn.Sequential(mlp_of(torch.float32), mlp_of(torch.float32))
    model[1].act_fn = nn.GELU()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e-3)
    assert len(use_gated_mlps(model)) == 1
    assert isinstance(model[0], GatedMLP)
