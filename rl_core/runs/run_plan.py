"""Opening a training run: its folder, its MLflow run, and the links between them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from rl_core.envs.seats import with_models
from rl_core.runs.checkpoints.place import kept_names, open_folder
from rl_core.runs.recipes import dump_recipe, shown_values
from rl_core.runs.run_folder import RunFolder, run_key, source_revision
from rl_core.runtime.home import Home
from rl_core.tracking.run import TrackingRun
from rl_core.tracking.run_attempts import Opening, record_opening
from rl_core.tracking.validation import log_report
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.receipts import CacheReceipt, RunPlan, ValidationReport, VersionReceipt
from schemas.recipe import Recipe
from schemas.sections.checks.quantization import in_full_precision
from schemas.sections.tracks import IMAGES_FOLDER

EXPERIMENT = "rl-train"


def run_folder(recipe: Recipe, cache_hash: str, home: Home) -> RunFolder:
    """Return the newest folder of a recipe and its data."""
    first = f"{recipe.name}-{run_key(recipe, cache_hash)[:12]}"
    return open_folder(
        max(kept_names(recipe, first, home), key=_number, default=first), recipe, home
    )


def is_registered(folder: RunFolder) -> bool:
    """Return True if a model version refers to this folder."""
    return folder.receipt("register-model", VersionReceipt) is not None


def starting_from(recipe: Recipe, weights: str | None) -> Recipe:
    """Return the recipe with other initial weights; None keeps its own.

    Args: weights: a registered folder. That of a prompt enhancer may contain a pipeline, too.
    """
    if weights is None:
        return recipe
    changed: dict[str, object] = {"model": recipe.model.model_copy(update={"path": weights})}
    pipeline = Path(weights) / IMAGES_FOLDER
    if recipe.tracks is not None and pipeline.is_dir():
        painted = recipe.images.model.model_copy(update={"path": str(pipeline)})
        images = recipe.tracks.images.model_copy(update={"model": painted})
        changed["tracks"] = recipe.tracks.model_copy(update={"images": images})
    return recipe.model_copy(update=changed)


def measuring(recipe: Recipe, weights: str | None) -> Recipe:
    """Return the recipe that evaluates other weights, as `starting_from` has them, in the precision
    that they are stored in: registered weights are those of a rounded base already. A seat that the
    start plays keeps the recipe's own."""
    other = starting_from(recipe, weights)
    seated = with_models(recipe.environments, recipe.model.path)
    return other.model_copy(
        update={"model": in_full_precision(other.model), "environments": seated}
    )


def open_run(
    recipe: Recipe,
    report: ValidationReport,
    cache: CacheReceipt,
    home: Home,
    *,
    fresh: bool,
    tags: Mapping[str, str],
    origin: Mapping[str, str] | None = None,
) -> RunPlan:
    """Create the run, or continue the one with the same key. `fresh` starts it over."""
    folder = run_folder(recipe, cache.identity, home)
    folder.fetch()
    if fresh:
        folder = _anew(folder, recipe, home)
    if (replaced := folder.create(dump_recipe(recipe))) is not None:
        announce(ProgressEvent("note", text=replaced))
    key = run_key(recipe, cache.identity)
    tracking = TrackingRun.open(
        home.mlflow_uri,
        EXPERIMENT,
        folder.root.name,
        run_id=folder.mlflow_run_id,
        tags={
            "run_key": key,
            "cache_hash": cache.run_hash,
            "git_revision": source_revision(),
            **tags,
        },
        artifact_location=home.artifact_location,
        outbox=folder.outbox,
    )
    record_opening(tracking, _opening(tags))
    folder.remember_tracking(key, tracking.run_id, cache.path)
    _log_inputs(tracking, recipe, report, cache)
    tracking.flush()
    return RunPlan(
        run_key=key,
        run_dir=str(folder.root),
        recipe=recipe.model_dump(mode="json"),
        cache=cache,
        mlflow_run_id=tracking.run_id,
        mlflow_url=tracking.url(home.mlflow_ui or "http://127.0.0.1:5000"),
        origin=dict(origin or {}),
    )


def _anew(folder: RunFolder, recipe: Recipe, home: Home) -> RunFolder:
    """Return an empty folder for the same key. A folder with a registered model is kept, and the
    next one gets a number."""
    if is_registered(folder):
        stem = folder.root.name.partition(".")[0]
        return open_folder(f"{stem}.{_number(folder.root.name) + 1}", recipe, home)
    folder.discard()
    return folder


def _number(name: str) -> int:
    """Return 1 for the first folder of a key, 2 for `<name>.2`."""
    return int(name.partition(".")[2] or 1)


def reopen_tracking(plan: RunPlan, home: Home) -> TrackingRun:
    """Open the MLflow run of a plan, from any process."""
    outbox = RunFolder(Path(plan.run_dir)).outbox
    return TrackingRun.open(
        home.mlflow_uri, EXPERIMENT, plan.run_key[:12], run_id=plan.mlflow_run_id, outbox=outbox
    )


def flatten(values: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten nested keys to dotted ones."""
    flat: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _opening(tags: Mapping[str, str]) -> Opening:
    return Opening(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        git_revision=source_revision(),
        flow_run_id=tags.get("prefect.flow_run_id", ""),
        flow_run_url=tags.get("prefect.flow_run_url", ""),
        folder=str(Path.cwd()),
    )


def _log_inputs(
    tracking: TrackingRun, recipe: Recipe, report: ValidationReport, cache: CacheReceipt
) -> None:
    tracking.log_params(flatten(shown_values(recipe)))
    tracking.log_text(dump_recipe(recipe), "recipe.yaml")
    log_report(tracking, report)
    tracking.log_text(cache.model_dump_json(indent=2), "receipts/cache.json")
    for index, source in enumerate(cache.sources):
        training = index < report.num_training_files
        tracking.log_dataset(
            "/".join(Path(source.path).parts[-2:]),
            source.path,
            source.sha256,
            context="training" if training else "evaluation",
            num_rows=cache.num_train_rows if training else cache.num_eval_rows,
        )
