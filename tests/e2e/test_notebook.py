"""The notebook of the documentation, run from its first cell to its last on a tiny model."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import LIMIT_S, REPOSITORY

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_the_notebook_runs_to_its_end(tiny_model_dir: Path, tmp_path: Path):
    """Its environment and its reward are given as objects; a callback looks on."""
    shutil.copy(REPOSITORY / "examples" / "notebook.py", tmp_path)
    environment = os.environ | {
        "RL_TRAIN_HOME": str(tmp_path / "home"),
        "SMOKE_MODEL": str(tiny_model_dir),
        "PYTHONPATH": str(REPOSITORY),
    }
    done = subprocess.run(
        [sys.executable, "notebook.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "<Run notebook-" in done.stdout and "models:/rl-train-notebook/1" in done.stdout
    assert "reward_mean" in done.stdout and "baseline" in done.stdout
