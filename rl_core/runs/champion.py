"""The model to beat, evaluated on this run's held-out rows: the champion, or the initial weights of
the training."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from rl_core.errors import StorageError
from rl_core.evaluation.gate import Judged
from rl_core.evaluation.runner import read_samples
from rl_core.models.locate import locate
from rl_core.runs.run_plan import starting_from
from rl_core.runs.session import TrainingSession, session_for
from rl_core.runtime.home import Home
from rl_core.runtime.secrets import redact_values
from rl_core.tracking.database import tracking_client
from rl_core.tracking.lineage import RECIPE_ARTIFACT, read_artifact
from rl_core.tracking.model_versions import RegisteredVersion, champion
from schemas.receipts import EvalReceipt, RunPlan
from schemas.recipe import Recipe

SAMPLES_ARTIFACT = "samples/evaluate-final.jsonl"
_JUDGED_BY = (
    "domain",
    "environments",
    "rewards",
    "reward_service",
    "evaluation",
    "diffusion",
    "tracks",
)
"""Sections of a recipe that affect the score of an answer."""


def incumbent_of(plan: RunPlan, baseline: EvalReceipt, home: Home) -> Judged:
    """Return the model that a new version has to beat.

    The evaluation recorded by the champion's own run is used if it covers the same rows, scored in
    the same way; otherwise the champion's weights are evaluated now, in separate workers.

    Args: baseline: evaluation of this training's initial weights.
    Raises: ModelError when the champion's weights are gone.
    """
    present = champion(home.mlflow_uri, Recipe.model_validate(plan.recipe).registered_name)
    if present is None:
        return Judged("baseline", read_samples(baseline.samples_path))
    name = f"champion v{present.version}"
    if present.tags["model_dir"] == plan.recipe["model"]["path"]:
        return Judged(name, read_samples(baseline.samples_path))
    recorded = _recorded(plan, present, baseline, home)
    return Judged(name, recorded if recorded is not None else _evaluated(plan, present))


def _recorded(
    plan: RunPlan, present: RegisteredVersion, baseline: EvalReceipt, home: Home
) -> list[dict[str, object]] | None:
    """Return the recorded evaluation of the champion's run, in this run's order of rows; None if it
    is not comparable."""
    if present.tags["eval_digest"] != baseline.eval_digest:
        return None
    client, run_id = tracking_client(home.mlflow_uri), present.tags["run_id"]
    try:
        recipe = yaml.safe_load(read_artifact(client, run_id, RECIPE_ARTIFACT))
        lines = read_artifact(client, run_id, SAMPLES_ARTIFACT).splitlines()
    except StorageError:
        return None
    if any(recipe.get(section) != redact_values(plan.recipe[section]) for section in _JUDGED_BY):
        return None
    rows = {row["uid"]: row for row in map(json.loads, lines)}
    return [rows[row["uid"]] for row in read_samples(baseline.samples_path)]


def _evaluated(plan: RunPlan, present: RegisteredVersion) -> list[dict[str, object]]:
    """Evaluate the champion on this run's held-out rows and return the answers."""
    locate(present.tags["model_dir"], Home.default().models)
    # Both sets of workers may want all devices; this run's are rebuilt from its checkpoint if they
    # are needed again.
    session_for(plan).close()
    recipe = starting_from(Recipe.model_validate(plan.recipe), present.tags["model_dir"])
    other = plan.model_copy(
        update={
            "run_dir": str(Path(plan.run_dir) / f"champion-v{present.version}"),
            "recipe": recipe.model_dump(mode="json"),
        }
    )
    session = TrainingSession(other, metric_prefix="champion")
    try:
        measured = read_samples(session.evaluate("champion", 0).samples_path)
        session.tracking.flush()
        return measured
    finally:
        session.close()
