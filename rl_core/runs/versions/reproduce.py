"""Training a registered version again: its recipe, the command, and the expected result.

On the CPU the same code, recipe and data give the same weights bit for bit; on other devices, or
with another number of threads, sums are taken in another order and the weights agree only nearly.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from rl_core.data.store.atomic import atomic_write_text
from rl_core.data.store.changes import Condition, check_sources
from rl_core.data.store.weights import weights_digest
from rl_core.errors import DataError, StorageError
from rl_core.runs.recipes import dump_recipe, parse_recipe, recorded_values
from rl_core.runs.run_folder import ORDERS_FILE
from rl_core.runtime.user_paths import user_path
from rl_core.tracking.artifacts import with_artifacts
from rl_core.tracking.database import tracking_client
from rl_core.tracking.lineage import Lineage

RECIPE, SCRIPT, EXPECTED, HOME = "recipe.yaml", "reproduce.sh", "expected.json", "home"


@dataclass(frozen=True)
class Reproduction:
    """A folder from which a version can be trained again."""

    folder: Path

    @property
    def script(self) -> Path:
        return self.folder / SCRIPT

    def run(self) -> int:
        """Run the script in this process's environment; return its exit code."""
        return subprocess.run(["sh", str(self.script)], check=False).returncode

    def differences(self) -> list[str]:
        """Return the differences from the recorded result as sentences; empty if the weights are
        the same bit for bit."""
        expected = json.loads((self.folder / EXPECTED).read_text(encoding="utf-8"))
        models = sorted((self.folder / HOME / "runs").glob("*/model"))
        if len(models) != 1:
            return [
                f"{len(models)} trained models under {self.folder / HOME / 'runs'}, expected one"
            ]
        found = weights_digest(models[0])
        recorded = expected["weights_digest"]
        if found == recorded:
            return []
        return [f"weights digest {found}, recorded {recorded}"]


def write_reproduction(lineage: Lineage, tracking_uri: str, folder: Path) -> Reproduction:
    """Write recipe, script and expectation into a new or empty folder.

    The run gets its own home inside the folder, so it neither finds finished work nor moves the
    champion.

    Raises: StorageError when the folder is not empty, or the version recorded no digest of its
    weights, or not when it took weights in flight; DataError naming the source files that have
    changed since.
    """
    root = user_path(folder).absolute()
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise StorageError(f"{folder} is not an empty folder; name a new one")
    if not lineage.weights_digest:
        raise StorageError(
            f"{lineage.name} v{lineage.version} recorded no digest of its weights: nothing to "
            "compare"
        )
    changed = []
    for check in check_sources(lineage.sources):
        if check.condition is not Condition.SAME:
            changed.append(check)
    if changed:
        raise DataError(
            "\n".join(f"{check}" for check in changed) + "\nput the recorded files back first"
        )
    written = recorded_values(yaml.safe_load(lineage.recipe))
    recipe = parse_recipe(with_artifacts(written, tracking_uri), where="recorded recipe")
    if recipe.rollout.in_flight:
        orders = _orders(lineage, tracking_uri, root)
        rollout = recipe.rollout.model_copy(update={"orders": str(orders)})
        recipe = recipe.model_copy(update={"rollout": rollout})
    atomic_write_text(root / RECIPE, dump_recipe(recipe))
    expected = {
        "weights_digest": lineage.weights_digest,
        "metrics": lineage.metrics,
        "git_revision": _code(lineage),
    }
    atomic_write_text(root / EXPECTED, json.dumps(expected, indent=2) + "\n")
    atomic_write_text(root / SCRIPT, _script(lineage, root))
    return Reproduction(root)


def _orders(lineage: Lineage, tracking_uri: str, root: Path) -> Path:
    """Bring the run's order of weights into the folder, and return its path. Raises: StorageError
    when the run kept none."""
    client = tracking_client(tracking_uri)
    if ORDERS_FILE not in {one.path for one in client.list_artifacts(lineage.run_id)}:
        raise StorageError(
            f"{lineage.name} v{lineage.version} was trained with rollout.in_flight, and its MLflow "
            f"run {lineage.run_id} has no {ORDERS_FILE}: when it took which weights is not known, "
            "and another run learns something else"
        )
    root.mkdir(parents=True, exist_ok=True)
    return Path(client.download_artifacts(lineage.run_id, ORDERS_FILE, str(root)))


def _code(lineage: Lineage) -> str:
    return lineage.git_revision or "not recorded"


def _script(lineage: Lineage, root: Path) -> str:
    where = lineage.openings[0].folder if lineage.openings else os.getcwd()
    command = [sys.executable, "-m", "flows.cli", "run", str(root / RECIPE)]
    return f"""#!/bin/sh
# Trains {lineage.name} v{lineage.version} (MLflow run {lineage.run_id}) again.
# Code: git revision {_code(lineage)}.
# Weights, data and everything else go to {HOME}/ beside this file.
set -eu
cd {shlex.quote(where)}
unset PREFECT_API_URL PREFECT_HOME MLFLOW_TRACKING_URI
export RL_TRAIN_HOME={shlex.quote(str(root / HOME))}
exec {shlex.join(command)}
"""
