"""`train` and `evaluate`: the flows in this process, as `rl-train run` and `eval` run them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from flows.local_run import evaluate_locally, run_locally
from flows.python_api.finished_run import Run
from flows.python_api.objects import Reward, environment_overrides, reward_overrides
from flows.python_api.process import process_kept
from rl_core.data.store.atomic import atomic_write_text
from rl_core.envs.base import BaseTextEnv
from rl_core.errors import RecipeError, StopTraining, UserError
from rl_core.reporting.run_record import RunRecord
from rl_core.runs.recipes import load_recipe
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.run_plan import run_folder
from rl_core.runs.versions.scorer_models import with_fixed_versions
from rl_core.runtime.home import Home
from rl_core.trainers.progress import ProgressEvent, listeners
from schemas.receipts import CacheReceipt, EvalReceipt, ModelReceipt

Callback = Callable[[ProgressEvent], object]
"""Function that is called after each step, with `step`, `total_steps` and `metrics`."""
Overrides = Mapping[str, object] | Sequence[str]
"""Settings by their dotted keys, or dotted assignments as on the command line."""
Row = Mapping[str, object]
"""A row as in a file: `prompt`, `env_class`, `reward_spec`."""


def train(
    recipe: str | Path | Mapping[str, object] = "text",
    overrides: Overrides = (),
    *,
    rows: Sequence[Row] = (),
    held_out: Sequence[Row] = (),
    environments: Mapping[str, type[BaseTextEnv]] | None = None,
    rewards: Sequence[Reward] = (),
    callbacks: Sequence[Callback] = (),
    profile: str | None = None,
    fresh: bool = False,
    quiet: bool = False,
) -> Run:
    """Train a recipe in this process, or continue an earlier run of the same recipe and data.

    Ctrl-C ends the run in order; the same call continues from the last complete checkpoint, as it
    does after a callback has raised `StopTraining`. No server is needed.

    Args:
        recipe: A shipped recipe's name, the path of a YAML file, or a recipe as a dictionary.
        overrides: Settings on top, such as `{"optimizer.learning_rate": 1e-4}`.
        rows: Training rows in place of the recipe's, as in a file of rows.
        held_out: Held-out rows in place of the recipe's.
        environments: Classes by the ids that rows name in `env_class`.
        rewards: Functions of one sample, or scorer classes, in place of the recipe's rewards.
        callbacks: Functions that are called after each step.
        profile: Placement: `cpu`, `one_gpu`, `one_node`, `many_nodes`; unset is the recipe's own.
        fresh: Start anew.
        quiet: Print nothing but warnings.

    Raises: UserError for whatever the caller can put right; KeyboardInterrupt on Ctrl-C.
    """
    home = Home.default()
    home.activate()
    named = _recipe_file(recipe, home) if isinstance(recipe, Mapping) else str(recipe)
    given = [
        *assignments(overrides),
        *_row_files({"data.train": rows, "data.eval": held_out}, home),
        *environment_overrides(environments or {}, home.root / "objects"),
        *reward_overrides(rewards, home.root / "objects"),
    ]
    settings = load_recipe(named, given, profile)
    prepared: list[CacheReceipt] = []
    with process_kept(), _followed(callbacks, prepared):
        try:
            receipt = run_locally(named, given, profile, fresh=fresh, debug=False, quiet=quiet)
        except StopTraining:
            fixed = with_fixed_versions(settings, home)
            return Run(RunRecord(run_folder(fixed, prepared[-1].identity, home)))
    assert isinstance(receipt, ModelReceipt)  # `load_recipe` refuses a chain
    return Run(RunRecord(RunFolder(Path(receipt.model_path).parent)))


def evaluate(
    model: str,
    recipe: str | Path | None = None,
    overrides: Overrides = (),
    *,
    profile: str | None = None,
    quiet: bool = False,
) -> EvalReceipt:
    """Evaluate a model on a recipe's held-out rows, without any training.

    Args: model: `models:/NAME@champion`, `RUN@ITERATION`, or as `model.path`. recipe: unset is
    that of the model's training. Returns: `accuracy` with `ci_low` and `ci_high`, `mean_reward`,
    `scores` and `samples_path`. Raises: UserError.
    """
    Home.default().activate()
    named = None if recipe is None else str(recipe)
    with process_kept():
        return evaluate_locally(
            model, named, assignments(overrides), profile, None, debug=False, quiet=quiet
        )


def assignments(overrides: Overrides) -> list[str]:
    """Return overrides as dotted assignments. Raises: RecipeError on a value that JSON cannot
    hold."""
    if not isinstance(overrides, Mapping):
        return list(overrides)
    assigned: list[str] = []
    for key, value in overrides.items():
        try:
            assigned.append(f"{key}={json.dumps(value)}")
        except TypeError as error:
            raise RecipeError(
                f"overrides[{key!r}]: expected a number, text, list or dictionary, got "
                f"{value!r:.80}"
            ) from error
    return assigned


def _row_files(given: Mapping[str, Sequence[Row]], home: Home) -> list[str]:
    """Write rows into files named by their content, and return the overrides that name these.
    Raises: RecipeError on a value that JSON cannot hold."""
    overrides: list[str] = []
    for key, rows in given.items():
        if not rows:
            continue
        try:
            text = "".join(f"{json.dumps(dict(row), ensure_ascii=False)}\n" for row in rows)
        except (TypeError, ValueError) as error:
            raise RecipeError(f"rows for {key}: {error}") from error
        path = home.root / "rows" / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(path, text)
        overrides.append(f"{key}={json.dumps([str(path)])}")
    return overrides


def _recipe_file(values: Mapping[str, object], home: Home) -> str:
    """Write a recipe that was given as a dictionary, and return its path."""
    try:
        text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
    except yaml.YAMLError as error:
        raise RecipeError(f"recipe: a value that YAML cannot hold ({error})") from error
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    path = home.root / "recipes" / f"{digest}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, text)
    return str(path)


@contextmanager
def _followed(callbacks: Sequence[Callback], prepared: list[CacheReceipt]) -> Iterator[None]:
    """Call the callbacks after each step of the block, and add what rows it trains on to
    `prepared`. A callback that raises ends the run, which is not tried again."""

    def follow(event: ProgressEvent) -> None:
        if isinstance(event.receipt, CacheReceipt):
            prepared.append(event.receipt)
        if event.phase != "step":
            return
        for callback in callbacks:
            try:
                callback(event)
            except UserError:
                raise
            except Exception as error:
                name = getattr(callback, "__name__", repr(callback))
                raise UserError(
                    f"the callback {name} raised {type(error).__name__} after step {event.step}: "
                    f"{error}"
                ) from error

    listeners.append(follow)
    try:
        yield
    finally:
        listeners.remove(follow)
