"""Registered models in a recipe's rewards: the version is fixed, workers get the folder, and what
is not there is said with its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_core.errors import RecipeError
from rl_core.runs import scorer_models
from rl_core.runtime.home import Home
from rl_core.tracking.model_versions import RegisteredVersion
from schemas.recipe import Recipe


def recipe_of(model: str) -> Recipe:
    values = {
        "name": "scored",
        "model": {"path": "m"},
        "data": {"train": ["a"], "eval": ["b"]},
        "rewards": [
            {"name": "length", "max_length": 4, "buffer": 2},
            {"name": "x", "model": model},
        ],
    }
    return Recipe.model_validate(values)


def test_an_alias_becomes_a_version_and_then_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = {"model_dir": str(tmp_path)}
    found = RegisteredVersion("rm", 3, tags, {}, "2026-01-01T00:00:00+00:00")
    monkeypatch.setattr(scorer_models, "find_version", lambda *_: found)
    recipe, home = recipe_of("models:/rm@champion"), Home.default()
    fixed = scorer_models.with_fixed_versions(recipe, home)
    assert fixed.rewards[1]["model"] == "models:/rm/3" and fixed.rewards[0] == recipe.rewards[0]
    assert scorer_models.with_folders(fixed, home).rewards[1]["model"] == str(tmp_path)
    tags["model_dir"] = str(tmp_path / "gone")
    with pytest.raises(RecipeError, match=r"rewards\.1\.model: rm v3: its weights at"):
        scorer_models.with_folders(fixed, home)
    plain = recipe_of("owner/name")
    assert scorer_models.with_fixed_versions(plain, home) is plain


def test_a_version_that_is_not_there_is_named() -> None:
    with pytest.raises(RecipeError, match=r"rewards\.1\.model: model 'none' has no alias champion"):
        scorer_models.with_fixed_versions(recipe_of("models:/none@champion"), Home.default())
