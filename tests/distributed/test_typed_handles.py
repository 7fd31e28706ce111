"""Calls on handles are checked against the class behind them, by pyright and at the call."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rl_core.distributed import Remote, per_rank, submit
from tests.distributed.components import Probe

ROOT = Path(__file__).parents[2]
SAMPLE = Path(__file__).with_name("typed_handles.py")


@pytest.mark.slow
def test_pyright_finds_every_wrong_call_and_no_other():
    command = [sys.executable, "-m", "pyright", "--outputjson", str(SAMPLE)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = {entry["range"]["start"]["line"] + 1 for entry in found if entry["severity"] == "error"}
    text = SAMPLE.read_text(encoding="utf-8").splitlines()
    assert lines == {number for number, line in enumerate(text, 1) if line.endswith("# wrong")}


def test_every_rank_answers_in_order(quad: Remote[Probe]):
    assert per_rank(quad.place)() == submit(quad.place).result() == quad.place()


def test_what_is_no_method_of_a_handle_is_refused(quad: Remote):
    with pytest.raises(TypeError, match="submit needs a method of a handle"):
        submit(len, "")
    with pytest.raises(TypeError, match="collect=ALL"):
        per_rank(quad.answer)
