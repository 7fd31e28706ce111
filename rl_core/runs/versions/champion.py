"""The model to beat, evaluated on this run's held-out rows: the champion, or the initial weights of
the training."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rl_core.errors import StorageError
from rl_core.evaluation.compared import compared_rows, prompts_of
from rl_core.evaluation.gate import Judged, uids
from rl_core.evaluation.rows import PlayedRow, Row
from rl_core.models.locate import whole_weights
from rl_core.models.model_path import check_path
from rl_core.runs.held_out import set_file
from rl_core.runs.run_plan import measuring
from rl_core.runs.session import TrainingSession, session_for
from rl_core.runtime.home import Home
from rl_core.runtime.secrets import redact_values
from rl_core.tracking.database import tracking_client
from rl_core.tracking.lineage import RECIPE_ARTIFACT, read_artifact
from rl_core.tracking.model_versions import RegisteredVersion, champion
from rl_core.tracking.stored_weights import weights_here
from schemas.receipts import EvalReceipt, RunPlan
from schemas.recipe import Recipe
from schemas.sections.evaluation_sets import without_default_evaluation
from schemas.sections.sampling import without_default_sampling

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
    recipe = Recipe.model_validate(plan.recipe)
    present = champion(home.mlflow_uri, recipe.registered_name)
    own = compared_rows(baseline, recipe.registration)
    assert own is not None, "the evaluation before training measures every set"
    if present is None:
        return Judged("baseline", own)
    name = f"champion v{present.version}"
    if present.tags["model_dir"] == plan.recipe["model"]["path"]:
        return Judged(name, own)
    recorded = _recorded(recipe, present, baseline, home)
    if recorded is not None and recorded.keys() == set(uids(own)):
        return Judged(name, [recorded[uid] for uid in uids(own)])
    return Judged(name, _evaluated(plan, present))


def _recorded(
    recipe: Recipe, present: RegisteredVersion, baseline: EvalReceipt, home: Home
) -> dict[str, Row] | None:
    """Return the rows of the recorded evaluation of the champion's run, by uid; None if they were
    not scored as here."""
    decides = recipe.registration.set
    if decides is None and present.tags["eval_digest"] != baseline.eval_digest:
        return None
    client, run_id = tracking_client(home.mlflow_uri), present.tags["run_id"]
    file = SAMPLES_ARTIFACT if decides is None else f"samples/{set_file('final', decides)}"
    try:
        written = yaml.safe_load(read_artifact(client, run_id, RECIPE_ARTIFACT))
        lines = read_artifact(client, run_id, file).splitlines()
    except StorageError:
        return None
    if _scoring(written) != _scoring(redact_values(recipe.model_dump(mode="json"))):
        return None
    rows = list(map(json.loads, lines))
    played: list[PlayedRow] = rows
    judged = played if decides is None else prompts_of(played, baseline.sets[decides])
    return {str(row["uid"]): row for row in judged}


def _scoring(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections of a recipe that affect scores, without keys that were added since and
    have no effect at their default."""
    sections: dict[str, Any] = {name: values.get(name) or {} for name in _JUDGED_BY}
    return without_default_evaluation(without_default_sampling(sections))


def _evaluated(plan: RunPlan, present: RegisteredVersion) -> Sequence[Row]:
    """Evaluate the champion on this run's held-out rows and return the answers."""
    recipe = Recipe.model_validate(plan.recipe)
    home = Home.default()
    folder, models = weights_here(present, home.mlflow_uri, home.models), home.models
    check_path(folder, models)
    # Both sets of workers may want all devices; this run's are rebuilt from its checkpoint if they
    # are needed again.
    session_for(plan).close()
    other_recipe = measuring(recipe, whole_weights(folder, models))
    other = plan.model_copy(
        update={
            "run_dir": str(Path(plan.run_dir) / f"champion-v{present.version}"),
            "recipe": other_recipe.model_dump(mode="json"),
        }
    )
    tracking = session_for(plan).tracking
    session = TrainingSession(other, metric_prefix="champion", tracking=tracking)
    try:
        measured = compared_rows(session.evaluate("champion", 0), recipe.registration)
        session.tracking.flush()
        assert measured is not None, "only evaluations between iterations leave a set out"
        return measured
    finally:
        session.close()
