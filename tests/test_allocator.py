"""What tensors free stays in the process."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from rl_core.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
import torch
torch.set_num_threads(1)
for number in range(16):
    if number == 8:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    # The backward pass runs in a thread of its own.
    states = torch.ones(2**18 * 24, requires_grad=True)
    (states.exp() * 2.0).sum().backward()
    del states
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Pages that the later of some equal rounds were lent by the system: of 24 MiB a tensor, and several of them."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_equal_rounds_hardly_need_new_memory():
    assert 2 * faults("keep") < faults("leave")
