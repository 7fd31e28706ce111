"""Evaluation of one model without training: a registered version, or any weights that a recipe's
`model.path` accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from rl_core.errors import RecipeError
from rl_core.models.locate import check_can_be_fetched, whole_weights
from rl_core.models.model_path import check_path
from rl_core.runs.recipes import (
    dump_recipe,
    load_recipe,
    parse_recipe,
    recorded_values,
    shown_values,
)
from rl_core.runs.run_folder import RunFolder, run_key, source_revision
from rl_core.runs.run_plan import flatten, measuring
from rl_core.runs.served import check_servable
from rl_core.runs.versions.iterations import KeptIteration, find_iteration
from rl_core.runtime.home import Home
from rl_core.runtime.settings_files import merge_overrides, resolved
from rl_core.tracking.database import tracking_client
from rl_core.tracking.lineage import RECIPE_ARTIFACT, read_artifact
from rl_core.tracking.model_versions import RegisteredVersion, find_version
from rl_core.tracking.run import TrackingRun
from rl_core.tracking.stored_weights import weights_here
from schemas.receipts import CacheReceipt, EvalReceipt, RunPlan
from schemas.recipe import Recipe

EXPERIMENT = "rl-evaluate"
LABEL = "evaluation"
REGISTERED = "models:"
SERVERS = ("http://", "https://")


@dataclass(frozen=True)
class Candidate:
    """A model to evaluate."""

    name: str
    weights: str | None
    """Weights in the form of `model.path`; None for a model behind a server."""
    version: RegisteredVersion | None = None
    iteration: KeptIteration | None = None
    """Iteration of a run, whose weights are still to be exported to `weights`."""
    url: str | None = None
    """Address of a server with an OpenAI-compatible API."""

    def recorded(self, receipt: EvalReceipt) -> float | None:
        """Return the accuracy at registration, if it was measured on the same rows."""
        if self.version is None or self.version.tags.get("eval_digest") != receipt.eval_digest:
            return None
        return float(self.version.tags["accuracy"])


def find_candidate(model: str, home: Home) -> Candidate:
    """Find the model to evaluate.

    Args: model: `models:/NAME@champion`, `models:/NAME/VERSION`, an iteration of a run as `RUN@12`,
    the address of a server, a folder, a hub id, or `embedded:...`.
    Raises: StorageError when there is no such version or iteration; ModelError when there are no
    such weights.
    """
    if model.startswith(SERVERS):
        return Candidate(model, None, url=model)
    if (kept := find_iteration(model, home)) is not None:
        return Candidate(kept.name, str(kept.export), iteration=kept)
    if not model.startswith(REGISTERED):
        check_can_be_fetched(model, home.models, "model")
        return Candidate(model, whole_weights(model, home.models))
    found = find_version(home.mlflow_uri, model)
    folder = weights_here(found, home.mlflow_uri, home.models)
    check_path(folder, home.models, "model")
    return Candidate(f"{found.name} v{found.version}", whole_weights(folder, home.models), found)


def evaluation_recipe(
    candidate: Candidate,
    recipe: str | None,
    overrides: Sequence[str],
    profile: str | None,
    home: Home,
) -> Recipe:
    """Return the recipe that defines held-out rows and scores; by default the one that the version
    was trained with.

    Raises: RecipeError when there is none to fall back on.
    """
    if recipe is not None:
        return load_recipe(recipe, overrides, profile)
    if candidate.version is None and candidate.iteration is None:
        raise RecipeError(
            f"{candidate.name} is no registered version: say on which recipe's held-out rows "
            "(--recipe)"
        )
    if profile is not None:
        raise RecipeError(
            "--profile goes with --recipe; the recorded recipe takes placement.key=value"
        )
    where = Path(f"recipe of {candidate.name}")
    if candidate.iteration is not None:
        text = candidate.iteration.recipe_text
    else:
        assert candidate.version is not None
        run_id = candidate.version.tags["run_id"]
        text = read_artifact(tracking_client(home.mlflow_uri), run_id, RECIPE_ARTIFACT)
    written = recorded_values(yaml.safe_load(text))
    # What watched the training does not watch an evaluation, unless it is asked to.
    written["tracking"] = {}
    return parse_recipe(resolved(merge_overrides(written, overrides, where), where), str(where))


def check_served(candidate: Candidate, served_model: str | None, recipe: Recipe) -> str | None:
    """Return the name of the model on the server; None for other candidates.

    Raises: RecipeError when the name is missing, or not wanted, or the rows cannot be put to one.
    """
    if candidate.url is None:
        if served_model is not None:
            raise RecipeError(
                f"--served-model {served_model}: {candidate.name} is no server; leave it out, or "
                "give http://host:port/v1"
            )
        return None
    if served_model is None:
        raise RecipeError(
            f"{candidate.url}: say which of the server's models is evaluated (--served-model)"
        )
    check_servable(recipe)
    return served_model


def open_evaluation(
    recipe: Recipe, cache: CacheReceipt, candidate: Candidate, home: Home, tags: Mapping[str, str]
) -> RunPlan:
    """Create a separate folder and MLflow run, in the experiment `rl-evaluate`; no training run is
    changed."""
    evaluated = measuring(recipe, candidate.weights)
    described = {
        "evaluated_model": candidate.name,
        "cache_hash": cache.run_hash,
        "git_revision": source_revision(),
    }
    tracking = TrackingRun.open(
        home.mlflow_uri,
        EXPERIMENT,
        f"{candidate.name} on {recipe.name}",
        tags={**described, **tags},
        artifact_location=home.artifact_location,
    )
    folder = RunFolder(home.evaluations / tracking.run_id)
    folder.create(dump_recipe(evaluated))
    key = run_key(evaluated, cache.identity)
    folder.remember_tracking(key, tracking.run_id, cache.path)
    tracking.log_params(flatten(shown_values(evaluated)))
    tracking.log_text(dump_recipe(evaluated), RECIPE_ARTIFACT)
    tracking.log_text(cache.model_dump_json(indent=2), "receipts/cache.json")
    return RunPlan(
        run_key=key,
        run_dir=str(folder.root),
        recipe=evaluated.model_dump(mode="json"),
        cache=cache,
        mlflow_run_id=tracking.run_id,
        mlflow_url=tracking.url(home.mlflow_ui or "http://127.0.0.1:5000"),
    )
