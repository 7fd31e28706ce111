"""Registered models in a recipe's rewards: the version is fixed, workers get the folder, and what
is not there is said with its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_core.errors import RecipeError
from rl_core.models.locate import check_models
from rl_core.runs.recipes import load_recipe
from rl_core.runs.run_plan import measuring
from rl_core.runs.versions import scorer_models
from rl_core.runtime.home import Home
from rl_core.tracking.model_versions import RegisteredVersion
from schemas.recipe import ModelConfig, Recipe


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


JUDGE = {"name": "judge", "model": "models:/rm@champion"}


def test_a_judge_is_fixed_in_process_and_left_alone_on_a_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = RegisteredVersion(
        "rm", 3, {"model_dir": str(tmp_path)}, {}, "2026-01-01T00:00:00+00:00"
    )
    monkeypatch.setattr(scorer_models, "find_version", lambda *_: found)
    served = {**JUDGE, "key": "served", "url": "http://127.0.0.1:9/v1"}
    recipe = load_recipe("smoke/judge", []).model_copy(update={"rewards": [JUDGE, served]})
    fixed = scorer_models.with_fixed_versions(recipe, Home.default())
    assert fixed.rewards == [{**JUDGE, "model": "models:/rm/3"}, served]
    # No folder and no name of the hub: the registry was asked when the run was opened.
    here = fixed.model_copy(update={"model": ModelConfig(path=str(whole(tmp_path)))})
    check_models(here, tmp_path)
    folders = scorer_models.with_folders(fixed, Home.default()).rewards
    assert [one["model"] for one in folders] == [str(tmp_path), "models:/rm@champion"]


def whole(folder: Path) -> Path:
    (folder / "config.json").write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("block", "fixed"),
    [
        ({"teacher": "models:/rm@champion"}, {"teacher": "models:/rm/3"}),
        (
            {"teacher": {"path": "models:/rm@champion", "hint": "extra_info.solution"}},
            {"teacher": {"path": "models:/rm/3", "hint": "extra_info.solution"}},
        ),
        (
            {"teachers": {"a": "models:/rm@champion", "b": {"path": "owner/name"}}},
            {"teachers": {"a": "models:/rm/3", "b": {"path": "owner/name"}}},
        ),
        ({"teacher": {"own": "base", "hint": "a"}}, {"teacher": {"own": "base", "hint": "a"}}),
    ],
)
def test_a_teachers_alias_becomes_the_version_of_the_run(
    monkeypatch: pytest.MonkeyPatch, block: dict[str, Any], fixed: dict[str, Any]
) -> None:
    found = RegisteredVersion("rm", 3, {}, {}, "2026-01-01T00:00:00+00:00")
    monkeypatch.setattr(scorer_models, "find_version", lambda *_: found)
    algorithm = {"name": "distillation", **block}
    recipe = recipe_of("owner/name").model_copy(update={"rewards": [], "algorithm": algorithm})
    changed = scorer_models.with_fixed_versions(recipe, Home.default())
    assert changed.algorithm == {"name": "distillation", **fixed}
    assert (changed is recipe) == (block == fixed)


def test_a_teacher_that_is_not_there_is_named() -> None:
    algorithm = {"name": "distillation", "teacher": {"path": "models:/none@champion"}}
    recipe = recipe_of("owner/name").model_copy(update={"rewards": [], "algorithm": algorithm})
    with pytest.raises(RecipeError, match=r"algorithm\.teacher\.path: model 'none'"):
        scorer_models.with_fixed_versions(recipe, Home.default())


def test_a_version_that_is_not_there_is_named() -> None:
    with pytest.raises(RecipeError, match=r"rewards\.1\.model: model 'none'"):
        scorer_models.with_fixed_versions(recipe_of("models:/none@champion"), Home.default())


def test_a_registered_opponent_is_fixed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tags = {"model_dir": str(tmp_path)}
    found = RegisteredVersion("rm", 3, tags, {}, "2026-01-01T00:00:00+00:00")
    monkeypatch.setattr(scorer_models, "find_version", lambda *_: found)
    seats = {"x": "policy", "o": "models:/rm@champion", "far": {"url": "http://h/v1", "model": "m"}}
    game = {"agent": "my:play", "seats": seats, "evaluation_seats": {"o": "start"}}
    recipe = recipe_of("owner/name").model_copy(update={"environments": {"game": game}})
    fixed = scorer_models.with_fixed_versions(recipe, Home.default())
    played = fixed.environments["game"]
    assert played["seats"] == seats | {"o": "models:/rm/3"}
    assert played["evaluation_seats"] == {"o": "start"}
    folders = scorer_models.with_folders(fixed, Home.default()).environments["game"]
    assert folders["seats"]["o"] == str(tmp_path)
    # Trained weights are measured against the model that the training began with.
    measured = measuring(recipe, str(tmp_path))
    assert measured.model.path == str(tmp_path)
    assert measured.environments["game"]["evaluation_seats"] == {"o": "m"}
