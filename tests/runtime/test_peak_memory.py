"""The peak of a process is its own, and stays when the memory is given back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rl_core.runtime import peak_memory
from rl_core.runtime.peak_memory import peak_bytes

CPU = torch.device("cpu")
NUM_BYTES = 200 * 2**20
PRINTED = "print(peak_bytes(torch.device('cpu')))"


def peaks(*code: str) -> list[int]:
    """What a new process of these lines prints."""
    lines = "\n".join(("import torch", "from rl_core.runtime.peak_memory import peak_bytes", *code))
    started = subprocess.run(
        [sys.executable, "-c", lines], check=True, capture_output=True, text=True
    )
    return [int(line) for line in started.stdout.split()]


def test_what_was_held_counts_after_it_is_gone():
    before, after = peaks(PRINTED, f"held = bytearray(b'1') * {NUM_BYTES}", "del held", PRINTED)
    assert after > before + 0.9 * NUM_BYTES


def test_what_held_more_and_started_this_process_does_not_count():
    held = bytearray(b"1") * NUM_BYTES
    (there,) = peaks(PRINTED)
    assert 0 < there < peak_bytes(CPU) - 0.5 * len(held)


def test_elsewhere_the_system_is_asked(monkeypatch: pytest.MonkeyPatch):
    exact = peak_bytes(CPU)
    monkeypatch.setattr(peak_memory, "STATUS", Path("/nowhere"))
    assert peak_bytes(CPU) >= 0.9 * exact
