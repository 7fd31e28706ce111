"""The command `rl-train` in a process of its own, as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
LIMIT_S = 900
"""After this a command counts as hung; the slowest brings up every service on a busy machine."""


def rl_train(
    home: Path, *arguments: str, cwd: Path = REPOSITORY, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Whatever a command with this home says, and how it ends."""
    return subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments],
        cwd=cwd,
        env=os.environ | {"RL_TRAIN_HOME": str(home)} | environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def answer(home: Path, *arguments: str, **environment: str) -> str:
    """What a command says that ends well."""
    done = rl_train(home, *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
