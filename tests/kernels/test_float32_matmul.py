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
print("same")
"""


def test_layers_their_gradients_and_given_room_get_the_rounded_product_in_float32() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False
    )
    assert done.stdout == "same\n", done.stderr
