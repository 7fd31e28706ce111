"""Comparison of a run's recipe with that of the champion it was to beat."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml

from rl_core.errors import StorageError
from rl_core.reporting.run_record import RunRecord
from rl_core.runs.recipes import recorded_values, shown_values
from rl_core.runs.run_plan import flatten
from rl_core.runtime.home import Home
from rl_core.tracking.database import tracking_client
from rl_core.tracking.lineage import RECIPE_ARTIFACT, read_artifact
from rl_core.tracking.model_versions import RegisteredVersion, champion, find_version
from schemas.recipe import Recipe

_COMPARED = re.compile(r"champion v(\d+)")


@dataclass(frozen=True)
class RecipeDifference:
    """The settings of two recipes that differ."""

    other: str
    """Name of the other model version."""
    rows: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Values of the other recipe and of the run's own, by dotted key."""
    problem: str = ""
    """Reason why they could not be compared."""


def difference_to_champion(record: RunRecord, home: Home) -> RecipeDifference | None:
    """Compare a run's recipe with that of the champion at its end, or of the present one before.

    Returns: None if there is no champion but the run's own model.
    """
    try:
        other = _champion_of(record, home)
    except StorageError as error:
        return RecipeDifference("the champion", problem=str(error).splitlines()[0])
    if other is None or other.tags.get("run_id") == record.mlflow_run_id:
        return None
    name = f"{other.name} v{other.version}"
    client = tracking_client(home.mlflow_uri)
    try:
        text = read_artifact(client, other.tags["run_id"], RECIPE_ARTIFACT)
        theirs = Recipe.model_validate(recorded_values(yaml.safe_load(text)))
    except (StorageError, ValueError, KeyError) as error:
        return RecipeDifference(name, problem=str(error).splitlines()[0])
    ours = flatten(shown_values(record.recipe))
    return RecipeDifference(name, _differing(flatten(shown_values(theirs)), ours))


def _differing(
    theirs: Mapping[str, object], ours: Mapping[str, object]
) -> dict[str, tuple[str, str]]:
    keys = dict.fromkeys([*theirs, *ours])
    values = {}
    for key in keys:
        values[key] = (str(theirs.get(key, "unset")), str(ours.get(key, "unset")))
    return {key: (one, other) for key, (one, other) in values.items() if one != other}


def _champion_of(record: RunRecord, home: Home) -> RegisteredVersion | None:
    if record.model is None:
        return champion(home.mlflow_uri, record.recipe.registered_name)
    # The run may have become champion itself since; the gate names the one before.
    found = _COMPARED.fullmatch(record.model.gate.compared_with)
    if found is None:
        return None
    return find_version(home.mlflow_uri, record.model.name, int(found[1]))
