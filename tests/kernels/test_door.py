"""The one door: light, complete, and what it swaps in goes out again."""

import subprocess
import sys

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rl_core import kernels

HEAVY = ("torch", "transformers", "peft")


def small_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    return LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)
    ).eval()


@pytest.mark.parametrize("name", kernels.__all__)
def test_every_name_is_found(name: str) -> None:
    assert getattr(kernels, name) is not None
    # Importing a file behind the door must not put it in the place of a name.
    assert not isinstance(getattr(kernels, name), type(sys))


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kernels.nothing  # noqa: B018


def test_the_door_is_light() -> None:
    code = (
        f"import sys, rl_core.kernels; print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_was_swapped_in_goes_out_again() -> None:
    model, ids = small_model(), torch.arange(12)[None]
    kinds = [type(module) for module in model.modules()]
    with torch.no_grad():
        before = model(ids).logits
        replaced = kernels.accelerate(model, model.device)
        assert len(replaced) > 0 and any(
            isinstance(module, kernels.RMSNorm) for module in model.modules()
        )
        torch.testing.assert_close(model(ids).logits, before)
        replaced.undo()
        assert [type(module) for module in model.modules()] == kinds
        assert torch.equal(model(ids).logits, before)


def test_a_model_on_a_device_that_was_not_measured_keeps_its_modules() -> None:
    model = small_model()
    kinds = [type(module) for module in model.modules()]
    assert len(kernels.accelerate(model, torch.device("cuda"))) == 0
    assert [type(module) for module in model.modules()] == kinds
