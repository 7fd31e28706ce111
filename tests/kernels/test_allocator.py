"""What tensors free stays in the process."""

import subprocess
import sys

import pytest

PAGES_OF_A_TENSOR = 24 * 2**20 // 4096
PROGRAM = """
import resource
from rl_core.kernels.allocator import keep_freed_memory
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


@pytest.mark.skipif(sys.platform != "linux", reason="of glibc")
def test_equal_rounds_hardly_need_new_memory():
    """Eight rounds of several tensors of 24 MiB; else the system mostly lends three to eight of
    them anew."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 2 * PAGES_OF_A_TENSOR
