"""Benchmarks of lm-evaluation-harness on a model folder, recorded in MLflow and with the version.

lm-eval runs in a process of its own, by this interpreter with the extra `eval`, or by another one:
its dependencies need not fit the project's. Tasks, prompts and metrics are its own, as anyone else
measures them; without a limit its figures may be set beside published ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_core.errors import ModelError, RecipeError
from rl_core.models.model_path import is_model
from rl_core.runs.evaluation import EXPERIMENT, Candidate
from rl_core.runtime.home import Home
from rl_core.tracking.database import tracking_client
from rl_core.tracking.keys import stored_key
from rl_core.tracking.run import TrackingRun

ASK_TIMEOUT_S = 120.0
SHOWN_LINES = 3
"""Last lines of lm-eval's output in an error."""


@dataclass(frozen=True)
class LmEval:
    """A call of lm-eval.

    Attributes: tasks: names, separated by commas. limit: number of rows of each task; None takes
    all. tasks_folder: further tasks, as YAML. python: interpreter with lm-eval.
    """

    tasks: str
    limit: int | None = None
    tasks_folder: Path | None = None
    python: str = sys.executable

    def command(self, model: Path, output: Path) -> list[str]:
        """Return the command line for a model folder."""
        command = [self.python, "-m", "lm_eval", "run", "--model", "hf"]
        command += ["--model_args", f"pretrained={model}"]
        command += ["--tasks", self.tasks, "--output_path", str(output)]
        command += [] if self.limit is None else ["--limit", str(self.limit)]
        return command + (
            [] if self.tasks_folder is None else ["--include_path", str(self.tasks_folder)]
        )

    def version(self) -> str:
        """Return lm-eval's version. Raises: RecipeError with the line that installs it."""
        ask = "from importlib.metadata import version; print(version('lm_eval'))"
        try:
            done = subprocess.run(
                [self.python, "-c", ask], capture_output=True, text=True, timeout=ASK_TIMEOUT_S
            )
        except OSError as error:
            raise RecipeError(
                f"--lm-eval-python {self.python} cannot be run: {error.strerror}"
            ) from error
        if done.returncode:
            raise RecipeError(
                f"--lm-eval: lm-eval is not installed for {self.python}; run "
                "pip install -c constraints.txt -e '.[eval]', or name another interpreter with "
                "--lm-eval-python"
            )
        return done.stdout.strip()


def measure(candidate: Candidate, wanted: LmEval, home: Home) -> dict[str, float]:
    """Run lm-eval on a model and record the results: a run in the experiment `rl-evaluate`, and
    tags of the version if it is registered.

    Returns: values by `<task>/<metric>`. Raises: RecipeError, ModelError as said there.
    """
    version = wanted.version()
    folder = Path(candidate.weights or "")
    if candidate.weights is None or not is_model(folder):
        raise ModelError(
            f"{candidate.name}: lm-eval reads a whole model folder, and {candidate.weights} is "
            "none (adapters alone need lora.export: merged)"
        )
    with tempfile.TemporaryDirectory() as scratch:
        results = _run(wanted, folder.absolute(), Path(scratch))
        values = values_of(results)
        tags = {"evaluated_model": candidate.name, "lm_eval.version": version}
        tracking = TrackingRun.open(
            home.mlflow_uri,
            EXPERIMENT,
            f"{candidate.name} on {wanted.tasks}",
            tags=tags,
            artifact_location=home.artifact_location,
        )
        limit = "all" if wanted.limit is None else wanted.limit
        tracking.log_params({"lm_eval.tasks": wanted.tasks, "lm_eval.limit": limit})
        tracking.log_metrics({f"lm_eval/{name}": value for name, value in values.items()}, 0)
        tracking.log_dict(results, "lm-eval.json")
        tracking.finish()
    if candidate.version is not None:
        found, client = candidate.version, tracking_client(home.mlflow_uri)
        said = {f"lm_eval.{name}": f"{value:.6g}" for name, value in values.items()}
        said |= {"lm_eval.version": version, "lm_eval.limit": str(limit)}
        for tag, text in (said | {"lm_eval.run_id": tracking.run_id}).items():
            client.set_model_version_tag(found.name, str(found.version), stored_key(tag), text)
    return values


def values_of(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of lm-eval's results by `<task>/<metric>`, the filter in the name unless
    it is `none`: `arc_easy/acc`, `gsm8k/exact_match,strict-match`."""
    scores: dict[str, float] = {}
    for task, found in results["results"].items():
        for name, value in found.items():
            if isinstance(value, int | float) and not isinstance(value, bool) and "," in name:
                scores[f"{task}/{re.sub(',none$', '', name)}"] = float(value)
    return scores


def _run(wanted: LmEval, model: Path, scratch: Path) -> dict[str, Any]:
    done = subprocess.run(
        wanted.command(model, scratch),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    written = sorted(scratch.rglob("results_*.json"))
    if done.returncode or not written:
        last = [line.strip() for line in done.stdout.splitlines() if line.strip()][-SHOWN_LINES:]
        raise RecipeError(
            f"--lm-eval {wanted.tasks}: lm-eval ended with code {done.returncode}: "
            + " / ".join(last)
        )
    return json.loads(written[-1].read_text(encoding="utf-8"))
