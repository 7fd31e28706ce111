"""A kept iteration of a run, `RUN@12`: found by name, and exported like the model that a run
registers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from rl_core.data.store.weights import weights_digest
from rl_core.errors import ModelError, RecipeError, StorageError
from rl_core.runs.known_runs import find_folder
from rl_core.runs.recipes import recorded_values
from rl_core.runs.run_folder import RunFolder
from rl_core.runtime.home import Home
from rl_core.tracking.database import tracking_client
from rl_core.tracking.lineage import IterationLineage, RunLineage, read_artifact, trace_run
from rl_core.tracking.model_card import ensure_card
from rl_core.tracking.model_folder import write_lineage
from schemas.receipts import CacheReceipt, EvalReceipt, RunPlan
from schemas.recipe import Recipe
from schemas.sections.policy import ExportKind

_REFERENCE = re.compile(r"(?P<run>[^/:@]+)@(?P<iteration>\d+)")


@dataclass(frozen=True)
class KeptIteration:
    """An iteration whose checkpoint is there."""

    folder: RunFolder
    iteration: int

    @property
    def name(self) -> str:
        return f"{self.folder.root.name}@{self.iteration}"

    @property
    def export(self) -> Path:
        """Folder in which the exported weights are kept for evaluations."""
        return self.folder.root / "iterations" / f"iteration-{self.iteration:04d}"

    @property
    def step(self) -> int:
        """Number of training steps behind the weights."""
        return int(self.folder.trainer_state(self.iteration)["step"])

    @property
    def recipe_text(self) -> str:
        return (self.folder.root / "recipe.yaml").read_text(encoding="utf-8")


def find_iteration(text: str, home: Home) -> KeptIteration | None:
    """Find the iteration that `RUN@12` refers to; None if the text is no such reference.

    Args: text: the run is named as for `find_folder`. Raises: StorageError naming the candidates or
    the nearest run, or the iterations whose checkpoints are there.
    """
    named = _REFERENCE.fullmatch(text)
    if named is None or Path(text).exists():
        return None
    folder = find_folder(home, named["run"])
    iteration, kept = int(named["iteration"]), folder.complete_iterations()
    if iteration not in kept:
        listed = ", ".join(map(str, kept)) or "none"
        raise StorageError(
            f"{text}: no checkpoint of iteration {iteration}; kept are: {listed} "
            "(training.keep_last and training.keep_best say how many stay)"
        )
    return KeptIteration(folder, iteration)


def export_iteration(
    found: KeptIteration, home: Home, to: Path, *, kind: ExportKind | None = None
) -> Path:
    """Write an iteration's weights as a model folder with its card and `lineage.json`, once.

    Args: kind: merge adapters or not; None for what the recipe says. Raises: ModelError when there
    are no adapters to write alone.
    """
    from rl_core.runs.session import TrainingSession

    session = TrainingSession(plan_of(found.folder, home, kind=kind))
    run = trace_run(home.mlflow_uri, session.plan.mlflow_run_id, ui=home.mlflow_ui)

    def describe(folder: Path) -> None:
        lineage = lineage_of(found, run, folder)
        ensure_card(folder, lineage)
        write_lineage(lineage, folder)

    try:
        return session.export_to(found.iteration, to, describe)
    finally:
        session.close()


def lineage_of(found: KeptIteration, run: RunLineage, weights: Path) -> IterationLineage:
    """Return the lineage of an iteration whose weights were written to a folder.

    Args: run: the lineage of its run.
    """
    judged = found.folder.receipt(f"evaluate-iteration-{found.iteration}", EvalReceipt)
    return IterationLineage(
        **vars(run),
        iteration=found.iteration,
        step=found.step,
        checkpoint=found.folder.checkpoint_address(found.iteration),
        weights_digest=weights_digest(weights),
        metrics={} if judged is None else judged.values(),
        eval_digest="" if judged is None else judged.eval_digest,
    )


def plan_of(folder: RunFolder, home: Home, *, kind: ExportKind | None = None) -> RunPlan:
    """Return the plan of a run that was opened before, from its folder and its MLflow run.

    Args: kind: what it exports instead of what its recipe says. Raises: StorageError, RecipeError
    when either is gone or cannot be read; ModelError when it has no adapters to export alone.
    """
    run_id = folder.mlflow_run_id
    if run_id is None:
        raise StorageError(f"{folder.root}: the run has no run.json; it was never opened")
    text = (folder.root / "recipe.yaml").read_text(encoding="utf-8")
    try:
        recipe = Recipe.model_validate(recorded_values(yaml.safe_load(text)))
    except ValueError as error:
        raise RecipeError(f"{folder.root / 'recipe.yaml'}: {error}") from error
    if kind is ExportKind.ADAPTER and recipe.lora is None:
        raise ModelError(f"{folder.root.name} trained all weights: there are no adapters (lora)")
    if kind is not None and recipe.lora is not None:
        changed = recipe.lora.model_copy(update={"export": kind})
        recipe = recipe.model_copy(update={"lora": changed})
    cache = read_artifact(tracking_client(home.mlflow_uri), run_id, "receipts/cache.json")
    return RunPlan(
        run_key=folder.root.name,
        run_dir=str(folder.root),
        recipe=recipe.model_dump(mode="json"),
        cache=CacheReceipt.model_validate_json(cache),
        mlflow_run_id=run_id,
        mlflow_url="",
    )
