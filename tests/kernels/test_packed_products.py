"""A packed layer gives the product it gave before, and is what it was once the block is over."""

from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn

from rl_core.kernels.float32_matmul import has_bfloat16_products
from rl_core.kernels.packed_products import packed_weights

pytestmark = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"),
    reason="weights are packed on x86 alone",
)


def assert_same(got: object, expected: object) -> None:
    """Bit by bit, but where the processor has no products in bfloat16: there the last of its 8 bits
    may be another."""
    rounding = 0.0 if has_bfloat16_products() else 2**-7
    torch.testing.assert_close(got, expected, rtol=rounding, atol=rounding)


def layers(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 80), nn.Linear(80, 8, bias=False), nn.Identity()).to(dtype)


@torch.no_grad()
@pytest.mark.parametrize("rows", [(1,), (5, 1), (300,)])
def test_a_product_in_bfloat16_stays_the_same(rows: tuple[int, ...]) -> None:
    model, states = layers(torch.bfloat16), torch.randn(*rows, 48).bfloat16()
    expected = model(states)
    with packed_weights(model):
        assert_same(model(states), expected)


@torch.no_grad()
def test_a_product_in_float32_differs_by_rounding_alone() -> None:
    model, states = layers(torch.float32), torch.randn(64, 48)
    exact = model.double()(states.double())
    model.float()
    with packed_weights(model):
        torch.testing.assert_close(model(states).double(), exact, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_weights_are_those_of_the_beginning_of_each_block() -> None:
    model, states = layers(torch.bfloat16), torch.randn(4, 48).bfloat16()
    first = model.get_parameter("0.weight")
    for _ in range(2):
        first.mul_(2)
        expected = model(states)
        with packed_weights(model):
            first.add_(1)
            assert_same(model(states), expected)
        assert not torch.equal(model(states), expected)


def test_an_error_in_the_block_leaves_nothing_behind() -> None:
    model = layers(torch.bfloat16)
    with pytest.raises(KeyError), packed_weights(model):
        assert "forward" in vars(model[0])
        raise KeyError
    assert not any("forward" in vars(module) for module in model)


def test_what_is_more_than_a_product_or_of_another_format_stays_as_it_is() -> None:
    class Doubled(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return 2 * super().forward(input)

    replaced, plain = nn.Linear(8, 8), nn.Linear(8, 8)
    replaced.forward = lambda input: input  # type: ignore[method-assign]
    model = nn.ModuleList([Doubled(8, 8), replaced, nn.Linear(8, 8).double(), plain])
    before = [vars(module).get("forward") for module in model]
    with packed_weights(model):
        inside = [vars(module).get("forward") for module in model]
    assert inside[:3] == before[:3]
    assert inside[3] is not None
    assert vars(replaced)["forward"] is before[1]


class Attention(nn.Module):
    """Three layers that read the same, and one that does not."""

    def __init__(self, biased: tuple[str, ...] = ()) -> None:
        super().__init__()
        sizes = {"q_proj": 24, "k_proj": 8, "v_proj": 8, "o_proj": 24}
        for name, size in sizes.items():
            self.add_module(name, nn.Linear(24, size, bias=name in biased))

    def forward(
        self, states: torch.Tensor, others: torch.Tensor | None = None
    ) -> list[torch.Tensor]:
        """What each layer makes of the states; keys and values, of the others if there are some."""
        seen = states if others is None else others
        inputs = (states, seen, seen, states)
        return [layer(one) for layer, one in zip(self.children(), inputs, strict=True)]


def products(model: nn.Module) -> int:
    """How many products a model's packed layers are."""
    forwards = [vars(module)["forward"] for module in model.modules() if "forward" in vars(module)]
    return len({id(forward.func.__self__) for forward in forwards})


@torch.no_grad()
@pytest.mark.parametrize(
    ("biased", "expected"), [((), 2), (("q_proj", "k_proj", "v_proj"), 2), (("q_proj",), 4)]
)
def test_layers_that_read_the_same_are_one_product_if_they_can(
    biased: tuple[str, ...], expected: int
) -> None:
    torch.manual_seed(0)
    model = Attention(biased).bfloat16()
    several = [torch.randn(3, 1, 24).bfloat16() for _ in range(3)]
    before = [model(states) for states in several]
    with packed_weights(model):
        assert products(model) == expected
        # What comes next has other states, and may be told to look at others still.
        for states, parts in zip([*several, several[0]], [*before, before[0]], strict=True):
            assert_same(model(states), parts)


@torch.no_grad()
def test_layers_that_were_thought_to_read_the_same_and_do_not_are_right_all_the_same() -> None:
    torch.manual_seed(0)
    model = Attention().bfloat16()
    states, others = torch.randn(3, 24).bfloat16(), torch.randn(5, 24).bfloat16()
    before = model(states, others), model(states)
    with packed_weights(model):
        assert products(model) == 2
        for _ in range(2):
            assert_same(model(states, others), before[0])
            assert_same(model(states), before[1])


def test_a_layer_that_two_modules_share_is_packed_once() -> None:
    first, second = Attention(), Attention()
    second.k_proj = first.k_proj
    model = nn.ModuleList([first, second])
    states = torch.randn(3, 24)
    before = [module(states) for module in model]
    with packed_weights(model), torch.no_grad():
        for module, parts in zip(model, before, strict=True):
            for got, part in zip(module(states), parts, strict=True):
                torch.testing.assert_close(got, part, rtol=1e-5, atol=1e-5)
    assert not any("forward" in vars(module) for module in model.modules())


def adapted(
    model: nn.Module, *, targets: list[str], dropout: float = 0.0, **config: object
) -> nn.Module:
    """The model in bfloat16 with adapters whose B is not zero."""
    inject_adapter_in_model(
        LoraConfig(r=4, target_modules=targets, lora_dropout=dropout, **config), model
    )  # type: ignore[arg-type]
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return model.bfloat16().eval()


def assert_near(got: object, expected: object) -> None:
    """But for a few roundings to 8 bits."""
    torch.testing.assert_close(got, expected, rtol=2**-6, atol=2**-6)


@torch.no_grad()
@pytest.mark.parametrize(
    ("targets", "expected"), [(["q_proj", "k_proj", "v_proj", "o_proj"], 2), (["q_proj"], 4)]
)
def test_adapters_are_part_of_the_product_of_what_they_read(
    targets: list[str], expected: int
) -> None:
    torch.manual_seed(0)
    model = adapted(Attention(("q_proj", "k_proj", "v_proj")), targets=targets, lora_alpha=8)
    several = [torch.randn(3, 1, 24).bfloat16() for _ in range(2)]
    before = [model(states) for states in several]
    with packed_weights(model):
        assert products(model) == expected
        for states, parts in zip(several, before, strict=True):
            assert_near(model(states), parts)
    assert not any("forward" in vars(module) for module in model.modules())


@torch.no_grad()
@pytest.mark.parametrize("biased", [(), ("q_proj", "k_proj", "v_proj", "o_proj")])
def test_adapters_in_float32_are_one_product_with_what_they_adapt(biased: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model = adapted(
        Attention(biased), targets=["q_proj", "k_proj", "v_proj", "o_proj"], lora_alpha=5
    ).double()
    states = torch.randn(64, 24)
    exact = model(states.double())
    model.float()
    with packed_weights(model):
        forwards = [
            vars(module)["forward"] for module in model.modules() if "forward" in vars(module)
        ]
        assert len(forwards) == 4 and all(
            forward.func.__self__.narrow is None for forward in forwards
        )
        for got, part in zip(model(states), exact, strict=True):
            torch.testing.assert_close(got.double(), part, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_an_adapter_may_be_scaled_by_anything() -> None:
    torch.manual_seed(0)
    model = adapted(Attention(), targets=["q_proj", "k_proj", "v_proj"], lora_alpha=5)
    states = torch.randn(64, 24).bfloat16()
    before = model(states)
    with packed_weights(model):
        assert_near(model(states), before)


@torch.no_grad()
def test_the_adapter_that_is_active_is_the_one_that_counts() -> None:
    torch.manual_seed(0)
    model = adapted(Attention(), targets=["q_proj"], lora_alpha=8)
    layer: Any = model.get_submodule("q_proj")
    layer.update_layer("other", 4, 16, config=LoraConfig(r=4, lora_alpha=16))
    model.bfloat16()
    nn.init.normal_(layer.lora_B["other"].weight, std=0.1)
    states, found = torch.randn(5, 24).bfloat16(), []
    for names in (["default"], ["other"]):
        layer._active_adapter = names
        found.append(layer(states))
        with packed_weights(model):
            assert_near(layer(states), found[-1])
    assert not torch.equal(*found)


@torch.no_grad()
@pytest.mark.parametrize("change", ["dropout", "disabled", "merged", "two", "dora"])
def test_adapters_that_are_more_than_two_products_are_left_to_peft(change: str) -> None:
    torch.manual_seed(0)
    model = adapted(
        Attention(),
        targets=["q_proj"],
        lora_alpha=8,
        dropout=0.5 * (change == "dropout"),
        use_dora=change == "dora",
    )
    layer: Any = model.get_submodule("q_proj")
    if change == "dropout":
        model.train()
    elif change == "disabled":
        layer.enable_adapters(False)
    elif change == "merged":
        layer.merge()
    elif change == "two":
        layer.update_layer("other", 4, 16, config=LoraConfig(r=4, lora_alpha=16))
        model.bfloat16()
        layer._active_adapter = ["default", "other"]
    states = torch.randn(5, 24).bfloat16()
    torch.manual_seed(1)
    before = layer(states)
    with packed_weights(model):
        assert "forward" not in vars(layer)
        torch.manual_seed(1)
        assert_same(layer(states), before)
