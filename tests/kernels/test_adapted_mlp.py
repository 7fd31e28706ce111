"""A gated MLP with adapters gives what its layers give one by one, and hands back what it does not
know."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.nn.functional import silu

from rl_core.kernels import adapted_linear, adapted_mlp
from rl_core.kernels.adapted_linear import AdaptedLinear
from rl_core.kernels.gated_mlp import PARTS, GatedMLP
from tests.models.saved import num_kept

HIDDEN, BETWEEN = 12, 40


def mlp_of(dtype: torch.dtype, targets: tuple[str, ...] = PARTS, **config: Any) -> Any:
    """An MLP with adapters of rank 3 whose B is not zero."""
    torch.manual_seed(0)
    sizes = (HIDDEN, BETWEEN), (HIDDEN, BETWEEN), (BETWEEN, HIDDEN)
    mlp = GatedMLP(*(nn.Linear(*size, bias=False) for size in sizes))
    settings = LoraConfig(r=3, lora_alpha=5, target_modules=list(targets), **config)
    settings._register_custom_module({nn.Linear: AdaptedLinear})
    inject_adapter_in_model(settings, mlp)
    for name, parameter in mlp.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.2)
    return mlp.to(dtype)


def one_by_one(mlp: Any, states: Tensor) -> Tensor:
    """The same by the layers' own calls."""
    return mlp.down_proj(silu(mlp.gate_proj(states)) * mlp.up_proj(states))


def trained(forward: Any, mlp: nn.Module, *, with_states: bool = True) -> dict[str, Tensor]:
    """What comes out, and every gradient of a loss of it."""
    mlp.zero_grad()
    dtype = next(mlp.parameters()).dtype
    states = torch.randn(2, 50, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)
    out = forward(mlp, states.requires_grad_(with_states))
    out.backward(torch.linspace(-1, 1, out.numel()).view_as(out).to(dtype))
    found = {name: one.grad for name, one in mlp.named_parameters() if one.grad is not None}
    return {
        "out": out.detach(),
        **found,
        **({"states": states.grad} if states.grad is not None else {}),
    }


@pytest.mark.parametrize("with_states", [True, False])
def test_it_gives_what_its_layers_give_one_by_one(with_states: bool) -> None:
    mlp = mlp_of(torch.float64)
    ours, theirs = (
        trained(way, mlp, with_states=with_states) for way in (GatedMLP.forward, one_by_one)
    )
    assert len(ours) == 1 + 6 + with_states
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("computed", [torch.bfloat16, torch.float32])
def test_in_bfloat16_the_result_is_the_same_bit_by_bit(
    computed: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the format in which a processor multiplies."""
    for module in (adapted_linear, adapted_mlp):
        monkeypatch.setattr(module, "product_dtype", lambda _: computed)
    mlp = mlp_of(torch.bfloat16)
    ours, theirs = trained(GatedMLP.forward, mlp), trained(one_by_one, mlp)
    assert torch.equal(ours.pop("out"), theirs.pop("out"))
    assert set(ours) == set(theirs)
    for name, gradient in ours.items():
        assert gradient.dtype == torch.bfloat16
        assert (gradient - theirs[name]).norm() < 0.01 * theirs[name].norm(), name


def test_it_keeps_half_of_what_its_layers_keep_between_them() -> None:
    mlp, states = mlp_of(torch.float32), torch.randn(50, HIDDEN)
    ours, theirs = (num_kept(mlp, BETWEEN, way, states) for way in (GatedMLP.forward, one_by_one))
    assert ours * 2 == theirs > 0


@pytest.mark.parametrize("change", ["dropout", "disabled", "hook", "some"])
def test_what_is_not_plainly_adapted_is_called_layer_by_layer(change: str) -> None:
    config = {"lora_dropout": 0.5} if change == "dropout" else {}
    mlp = mlp_of(torch.float64, PARTS[:2] if change == "some" else PARTS, **config)
    if change == "disabled":
        mlp.gate_proj.enable_adapters(False)
    elif change == "hook":
        mlp.up_proj.register_forward_hook(lambda module, inputs, out: 2 * out)
    found = []
    for way in (GatedMLP.forward, one_by_one):
        torch.manual_seed(2)
        found.append(trained(way, mlp))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert "_AdaptedGated" not in type(mlp(torch.randn(2, HIDDEN).double()).grad_fn).__name__
