"""The commands `rl-train recipes`, `runs` and `models`: what there is."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from flows.lists.listing import Entry, Json, print_list
from rl_core.runtime.home import Home
from rl_core.services.addresses import Server, check_addresses

if TYPE_CHECKING:
    from rl_core.reporting.run_record import RunRecord


def recipes(as_json: Json = False) -> None:
    """List the shipped recipes, chains of them, and profiles, each with what it is."""
    from rl_core.runs.recipes import chain_names, find_recipe, profile_names, recipe_names
    from rl_core.runtime.settings_files import DEPLOYMENTS, first_comment

    entries: list[Entry] = []
    for kind, names in (("recipe", recipe_names()), ("chain", chain_names())):
        for name in names:
            about = first_comment(find_recipe(name))
            entries.append({"kind": kind, "name": name, "about": about})
    for name in profile_names():
        about = first_comment(DEPLOYMENTS / "profiles" / f"{name}.yaml")
        entries.append({"kind": "profile", "name": name, "about": about})
    print_list("Recipes, chains and profiles", ("kind", "name", "about"), entries, as_json)


def runs(as_json: Json = False) -> None:
    """List the runs of this home, the newest first, with what they reached."""
    from rl_core.reporting.run_record import RunRecord
    from rl_core.runs.known_runs import known_runs

    entries = [_run_entry(RunRecord(folder)) for folder in known_runs(Home.default()).values()]
    columns = ("run", "recipe", "started", "steps", "score", "before", "after", "version")
    print_list("Runs", columns, entries, as_json)


def _run_entry(record: RunRecord) -> Entry:
    started = (record.folder.root / "run.json").stat().st_mtime
    before, after = record.evaluation("baseline"), record.evaluation("final")
    return {
        "run": record.name,
        "recipe": record.recipe.name,
        "started": datetime.fromtimestamp(started).astimezone().isoformat(timespec="minutes"),
        "steps": len(record.steps),
        "score": record.score_name,
        "before": None if before is None else record.value(before),
        "after": None if after is None else record.value(after),
        "version": None if record.model is None else f"{record.model.name} v{record.model.version}",
    }


def models(as_json: Json = False) -> None:
    """List the registered model versions, with the champion of each model."""
    from rl_core.tracking.model_versions import all_versions

    check_addresses(Server.MLFLOW)
    entries: list[Entry] = []
    for version, champion in all_versions(Home.default().mlflow_uri):
        entries.append(
            {
                "model": version.name,
                "version": version.version,
                "champion": champion,
                "registered": version.created_at,
                "accuracy": version.metrics.get("accuracy"),
                "weights": version.tags.get("model_dir"),
            }
        )
    columns = ("model", "version", "champion", "registered", "accuracy", "weights")
    print_list("Registered models", columns, entries, as_json)
