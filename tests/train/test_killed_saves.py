"""A save that is killed at any moment leaves a checkpoint that loads right, or none."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_killed_save_never_leaves_a_checkpoint_that_loads_wrong(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    command = [
        sys.executable,
        "-m",
        "tests.train.killed_saves",
        str(tiny_model_dir),
        str(tmp_path),
        str(seed),
    ]
    done = subprocess.run(
        command,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stderr}"
    rounds = json.loads(done.stdout.splitlines()[-1])
    assert len(rounds) == 10
    assert all(one["right"] for one in rounds), f"seed {seed}: {rounds}"
    # What was complete before a kill is still there after it, or something newer is.
    assert all(one["last"] >= one["before"] for one in rounds), f"seed {seed}: {rounds}"
    assert any(one["left"] for one in rounds), f"seed {seed}: no kill hit a save: {rounds}"
