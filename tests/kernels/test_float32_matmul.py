"""Products in bfloat16 that a processor has no instructions for are those in float32, rounded."""

import subprocess
import sys

PROGRAM = """
import warnings

import torch

import rl_core.kernels.float32_matmul as wide

warnings.simplefilter("error")
wide.has_bfloat16_products = lambda: False
assert wide.widen_products() and wide.widen_products()

torch.manual_seed(0)
states, weight, bias = (torch.randn(*size).bfloat16() for size in ((2, 5, 64), (32, 64), (32,)))


def same(got, exact):
    assert got.dtype is torch.bfloat16
    assert torch.equal(got, exact.bfloat16()), (got, exact)


linear = torch.nn.functional.linear
same(linear(states, weight), linear(states.float(), weight.float()))
same(linear(states, weight, bias), linear(states.float(), weight.float(), bias.float()))
same(states @ states.mT, states.float() @ states.float().mT)
same(torch.addmm(bias[:5], states[0], states[0].T, beta=2, alpha=0.5),
     torch.addmm(bias[:5].float(), states[0].float(), states[0].T.float(), beta=2, alpha=0.5))

room = torch.empty(5, 32, dtype=torch.bfloat16)
assert torch.mm(states[0], weight.T, out=room) is room
same(room, states[0].float() @ weight.T.float())
added = torch.randn(5, 32).bfloat16()
exact = torch.addmm(added.float(), states[0].float(), weight.T.float())
assert torch.addmm(added, states[0], weight.T, out=added) is added
same(added, exact)
grown = torch.empty(0, dtype=torch.bfloat16)
same(torch.addmm(bias, states[0], weight.T, out=grown),
     torch.addmm(bias.float(), states[0].float(), weight.T.float()))
kept = torch.ones(5, 32).bfloat16()
assert kept.addmm_(states[0], weight.T) is kept
same(kept, torch.ones(5, 32) + states[0].float() @ weight.T.float())
try:
    torch.ones(1, 32).bfloat16().addmm_(states[0], weight.T)
except RuntimeError as error:
    assert "shape" in str(error) or "size" in str(error), error
else:
    raise AssertionError("a sum grew out of its room")
exact = torch.empty(5, 32)
torch.mm(states[0].float(), weight.T.float(), out=exact)
assert torch.equal(exact, states[0].float() @ weight.T.float())

narrow = [tensor.clone().requires_grad_() for tensor in (states, weight, bias)]
broad = [tensor.float().requires_grad_() for tensor in (states, weight, bias)]
slope = torch.randn(2, 5, 32).bfloat16()
linear(*narrow).backward(slope)
linear(*broad).backward(slope.float())
for one, other in zip(narrow[:2], broad[:2]):
    same(one.grad, other.grad)


def gradients(layer, *given):
    given = [one.detach().clone().requires_grad_() for one in given]
    made = layer(*given)
    made.backward(torch.linspace(-1, 1, made.numel(), dtype=made.dtype).view(made.shape))
    return [one.grad for one in given]


def convolve(pictures, kernel):
    return torch.nn.functional.conv2d(pictures, kernel, stride=2)


pictures, kernel = torch.randn(2, 3, 8, 8).bfloat16(), torch.randn(4, 3, 2, 2).bfloat16()
same(convolve(pictures, kernel), convolve(pictures.float(), kernel.float()))
for one, other in zip(gradients(convolve, pictures, kernel),
                      gradients(convolve, pictures.float(), kernel.float())):
    assert one.dtype is torch.bfloat16
    torch.testing.assert_close(one.float(), other, rtol=2e-2, atol=2e-2)
attend = torch.nn.functional.scaled_dot_product_attention
seen = [torch.randn(2, 4, 16, 32).bfloat16() for _ in range(3)]
for one, other in zip(gradients(attend, *seen), gradients(attend, *(one.float() for one in seen))):
    assert one.dtype is torch.bfloat16
    torch.testing.assert_close(one.float(), other, rtol=2e-2, atol=2e-2)
print("same")
"""


def test_layers_their_gradients_and_given_room_get_the_rounded_product_in_float32() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout == "same\n", done.stderr


TRAINING = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

import rl_core.kernels.float32_matmul as wide
from rl_core.kernels import accelerate

MULTIPLY = ("mm", "addmm", "addmv", "addbmm", "bmm", "baddbmm", "conv", "attention")


class Seen(TorchDispatchMode):
    found = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        tensors = [one for one in args if isinstance(one, torch.Tensor)]
        if any(one.dtype is torch.bfloat16 for one in tensors):
            self.found.add(str(operator).removeprefix("aten.").removesuffix(".default"))
        return operator(*args, **(kwargs or {}))


model = LlamaForCausalLM(LlamaConfig(
    hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, vocab_size=50)).bfloat16()
assert accelerate(model, torch.device("cpu"))
with Seen() as seen:
    ids = torch.randint(0, 50, (2, 12))
    model(input_ids=ids, labels=ids).loss.backward()
multiply = {one for one in seen.found if any(part in one for part in MULTIPLY)}
print(sorted(multiply - set(wide.PRODUCTS)), len(multiply))
"""


def test_a_training_pass_has_no_product_that_stays_narrow() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRAINING], capture_output=True, text=True, check=False
    )
    # Attention's forward pass is as quick in bfloat16.
    attention = "_scaled_dot_product_flash_attention_for_cpu"
    assert done.stdout.startswith(f"['{attention}'] "), done.stdout + done.stderr
    assert int(done.stdout.split()[-1]) >= 4
