"""Decision whether a scheduled or triggered run has anything new to train on, and its initial
weights."""

from __future__ import annotations

import hashlib
import json

from rl_core.runs.run_folder import source_revision, trained_values
from rl_core.runs.run_plan import is_registered, run_folder, starting_from
from rl_core.runtime.home import Home
from rl_core.tracking.model_versions import champion, newest
from rl_core.tracking.stored_weights import weights_here
from schemas.receipts import CacheReceipt, News
from schemas.recipe import Recipe
from schemas.sections.registration import Retrain, Start

ORIGIN_TAG = "origin."
"""Prefix of a registered version's tags with the digests of its training's inputs."""


def origin_of(recipe: Recipe, cache: CacheReceipt) -> dict[str, str]:
    """Return digests of a training's inputs: the content of its files, the code, and the recipe."""
    files = [source.sha256 for source in cache.sources]
    files += [one.run_hash for one in cache.sets.values()]
    return {
        "data": _digest(files),
        "code": source_revision(),
        "recipe": _digest(trained_values(recipe)),
    }


def look_for_news(recipe: Recipe, cache: CacheReceipt, retrain: Retrain, home: Home) -> News:
    """Compare with the newest registered version, whether it became champion or not."""
    last = newest(home.mlflow_uri, recipe.registered_name)
    if last is None:
        found, reason = True, f"there is no {recipe.registered_name} yet"
    else:
        origin = origin_of(recipe, cache)
        parts = []
        for part, digest in origin.items():
            if last.tags.get(f"{ORIGIN_TAG}{part}") != digest:
                parts.append(part)
        known = f"{last.name} v{last.version} of {last.created_at}"
        found = bool(parts)
        if found:
            reason = f"{' and '.join(parts)} changed since {known}"
        else:
            reason = f"nothing new since {known}"
    start = _start(recipe, home)
    begun = run_folder(starting_from(recipe, start), cache.identity, home)
    return News(
        train=found or retrain is Retrain.ALWAYS,
        reason=reason,
        start_from=start,
        # What was registered is done; what was cut short goes on.
        fresh=is_registered(begun),
    )


def _start(recipe: Recipe, home: Home) -> str | None:
    """Return the champion's folder if the recipe starts from it and there is one."""
    if recipe.retraining.start is Start.CHAMPION:
        present = champion(home.mlflow_uri, recipe.registered_name)
    else:
        present = None
    if present is None:
        return None
    return weights_here(present, home.mlflow_uri, home.models)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
