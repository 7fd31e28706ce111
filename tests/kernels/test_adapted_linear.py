"""An adapted layer trains as peft's own does, and hands what is more than two products back to
it."""

import copy
from collections import defaultdict
from statistics import mean
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners import lora
from torch import Tensor, nn

from rl_core.kernels.adapted_linear import AdaptedLinear, plain_parts


def adapted(*, biased: bool = True, dtype: torch.dtype = torch.float64, **config: Any) -> Any:
    """A layer of 12 to 20 features with an adapter of rank 3 whose B is not zero."""
    torch.manual_seed(0)
    model, settings = (
        nn.Sequential(nn.Linear(12, 20, bias=biased)),
        LoraConfig(r=3, target_modules=["0"], **config),
    )
    settings._register_custom_module({nn.Linear: AdaptedLinear})
    inject_adapter_in_model(settings, model)
    layer: Any = model[0]
    nn.init.normal_(layer.lora_B["default"].weight, std=0.2)
    return layer.to(dtype)


def trained(forward: Any, layer: nn.Module, states: Tensor) -> dict[str, Tensor]:
    """What comes out, and every gradient of a loss of it."""
    layer.zero_grad()
    states = states.detach().requires_grad_()
    out = forward(layer, states)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    assert states.grad is not None
    gradients = {name: one.grad for name, one in layer.named_parameters() if one.grad is not None}
    return {"out": out.detach(), "states": states.grad, **gradients}


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("rows", [(), (5,), (2, 3)])
def test_it_gives_what_peft_gives(rows: tuple[int, ...], biased: bool) -> None:
    layer, states = (
        adapted(biased=biased, lora_alpha=5),
        torch.randn(*rows, 12, dtype=torch.float64),
    )
    ours, peft = (
        trained(AdaptedLinear.forward, layer, states),
        trained(lora.Linear.forward, layer, states),
    )
    assert set(ours) == {"out", "states", "lora_A.default.weight", "lora_B.default.weight"}
    torch.testing.assert_close(ours, peft, rtol=1e-12, atol=1e-12)


def test_in_bfloat16_it_is_no_further_from_the_truth_than_peft() -> None:
    """On average: in one draw either may be twice as near, and which, depends on the processor."""
    exact = adapted(lora_alpha=5)
    layer = copy.deepcopy(exact).bfloat16()
    exact.load_state_dict(layer.state_dict())
    distances: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for seed in range(40):
        states = torch.randn(256, 12, generator=torch.Generator().manual_seed(seed)).bfloat16()
        truth = trained(AdaptedLinear.forward, exact, states.double())
        ours, peft = (trained(kind.forward, layer, states) for kind in (AdaptedLinear, lora.Linear))
        for name, value in truth.items():
            assert ours[name].dtype == torch.bfloat16
            away, allowed = (
                float((got[name] - value).norm() / value.norm()) for got in (ours, peft)
            )
            distances[name].append((away, allowed))
    for name, pairs in distances.items():
        away, allowed = map(mean, zip(*pairs, strict=True))
        assert away <= 1.1 * allowed + 1e-4, name


def test_states_without_gradient_get_none() -> None:
    layer = adapted()
    layer(torch.randn(4, 12, dtype=torch.float64)).sum().backward()
    assert layer.lora_A["default"].weight.grad is not None
    assert layer.base_layer.weight.grad is None


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    layer = adapted()
    states = torch.randn(4, 12, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad((layer(states) ** 2).sum(), states, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


@pytest.mark.parametrize(
    "change", ["disabled", "merged", "two", "dora", "hook", "trained", "states"]
)
def test_what_is_more_than_two_products_is_left_to_peft(change: str) -> None:
    layer = adapted(use_dora=change == "dora")
    states = torch.randn(6, 12, dtype=torch.float32 if change == "states" else torch.float64)
    if change == "disabled":
        layer.enable_adapters(False)
    elif change == "merged":
        layer.merge()
    elif change == "two":
        layer.update_layer("other", 3, 6, config=LoraConfig(r=3, lora_alpha=6))
        nn.init.normal_(layer.lora_B["other"].weight)
        layer.double()._active_adapter = ["default", "other"]
    elif change == "hook":
        layer.base_layer.register_forward_hook(lambda module, inputs, out: 2 * out)
    elif change == "trained":
        layer.base_layer.requires_grad_(True)
    elif change == "states":
        layer.base_layer.float()
    assert (plain_parts(layer) is None) == (change not in ("trained",))
    torch.manual_seed(1)
    ours = layer(states)
    assert "_Adapted" not in type(ours.grad_fn).__name__
    torch.manual_seed(1)
    torch.testing.assert_close(ours, lora.Linear.forward(layer, states), rtol=0, atol=0)


def test_dropout_is_that_of_peft_and_does_nothing_in_evaluation() -> None:
    layer, states = adapted(lora_dropout=0.5), torch.randn(6, 12, dtype=torch.float64)
    found = []
    for kind in (AdaptedLinear, lora.Linear):
        torch.manual_seed(1)
        found.append(trained(kind.forward, layer, states))
    ours, peft = found
    torch.testing.assert_close(ours, peft, rtol=1e-12, atol=1e-12)
    dropping, still = plain_parts(layer), plain_parts(layer.eval())
    assert dropping is not None and dropping.dropout is not None
    assert still is not None and still.dropout is None


@pytest.mark.parametrize("biased", [True, False])
def test_in_bfloat16_a_young_adapter_is_not_lost(biased: bool) -> None:
    """The error does not go with what the adapter adds. peft loses most of it: it adds the adapter
    to what was rounded already."""
    torch.manual_seed(0)
    model, settings = (
        nn.Sequential(nn.Linear(96, 64, bias=biased)),
        LoraConfig(r=3, target_modules=["0"]),
    )
    settings._register_custom_module({nn.Linear: AdaptedLinear})
    inject_adapter_in_model(settings, model)
    layer: Any = model[0].bfloat16()
    nn.init.normal_(layer.lora_B["default"].weight, std=2e-4)
    states = torch.randn(4096, 96).bfloat16()
    exact = copy.deepcopy(layer).double()
    bare = copy.deepcopy(exact)
    nn.init.zeros_(bare.lora_B["default"].weight)
    for part in ("out", "states"):
        truth = trained(AdaptedLinear.forward, exact, states.double())[part]
        added = truth - trained(AdaptedLinear.forward, bare, states.double())[part]
        kept = {}
        for kind in (AdaptedLinear, lora.Linear):
            got = trained(kind.forward, layer, states)[part].double()
            kept[kind] = 1 + float(((got - truth) * added).sum() / (added * added).sum())
        assert kept[AdaptedLinear] == pytest.approx(1, abs=0.1), part
        if part == "out":
            assert kept[lora.Linear] < 0.8, "the test shows nothing"
