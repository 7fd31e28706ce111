"""The peak of a process is its own, and stays when the memory is given back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rl_core import peak_memory
from rl_core.peak_memory import peak_bytes

CPU = torch.device("cpu")
NUM_BYTES = 200 * 2**20


def test_what_was_held_counts_after_it_is_gone():
    before = peak_bytes(CPU)
    held = bytearray(b"1") * NUM_BYTES
    del held
    assert peak_bytes(CPU) > before + 0.5 * NUM_BYTES


def test_what_held_more_and_started_this_process_does_not_count():
    held = bytearray(b"1") * NUM_BYTES
    code = "import torch; from rl_core.peak_memory import peak_bytes; print(peak_bytes(torch.device('cpu')))"
    started = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert 0 < int(started.stdout) < peak_bytes(CPU) - 0.5 * len(held)


def test_elsewhere_the_system_is_asked(monkeypatch: pytest.MonkeyPatch):
    exact = peak_bytes(CPU)
    monkeypatch.setattr(peak_memory, "STATUS", Path("/nowhere"))
    assert peak_bytes(CPU) >= 0.9 * exact
