"""A packed layer gives the product it gave before, and is what it was once the block is over."""

import pytest
import torch
from torch import nn

from rl_core.models.packed_weights import packed_weights

pytestmark = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="weights are packed on x86 alone"
)


def layers(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 80), nn.Linear(80, 8, bias=False), nn.Identity()).to(dtype)


@torch.no_grad()
@pytest.mark.parametrize("rows", [(1,), (5, 1), (300,)])
def test_a_product_in_bfloat16_stays_the_same_bit_by_bit(rows: tuple[int, ...]) -> None:
    model, states = layers(torch.bfloat16), torch.randn(*rows, 48).bfloat16()
    expected = model(states)
    with packed_weights(model):
        assert torch.equal(model(states), expected)


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
            assert torch.equal(model(states), expected)
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
