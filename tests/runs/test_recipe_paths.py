"""A relative path in a recipe is that of a file beside it, wherever the command is typed."""

from pathlib import Path

import pytest

from rl_core.data.read.sources import data_files
from rl_core.runs.recipes import load_recipe

RECIPE = """
name: mine
model: {path: tiny}
data:
  train: [rows.jsonl, "more/*.jsonl", {path: here/rows.jsonl}, elsewhere.jsonl, org/rows]
  eval: [/a/b.jsonl, ~/x.jsonl]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a recipe and files, and next to it the current folder."""
    folder = tmp_path / "a [b] project"
    for file in ("rows.jsonl", "more/1.jsonl", "here/rows.jsonl", "tiny/config.json"):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text("")
    (folder / "mine.yaml").write_text(RECIPE)
    away = tmp_path / "away"
    away.mkdir()
    (away / "elsewhere.jsonl").write_text("")
    monkeypatch.chdir(away)
    return folder


def test_what_lies_beside_the_recipe_is_meant(project: Path):
    recipe = load_recipe("../a [b] project/mine.yaml")
    assert recipe.data.train == [
        str(project / "rows.jsonl"),
        f"{project.parent}/a [[]b] project/more/*.jsonl",
        {"path": str(project / "here" / "rows.jsonl")},
        "elsewhere.jsonl",
        "org/rows",
    ]
    assert recipe.data.eval == ["/a/b.jsonl", "~/x.jsonl"]
    assert len(data_files(recipe.data.train[1])) == 1
    assert recipe.model.path == str(project / "tiny")


def test_an_override_is_of_the_current_folder(project: Path):
    recipe = load_recipe(str(project / "mine.yaml"), ["data.train=[rows.jsonl]"])
    assert recipe.data.train == ["rows.jsonl"]


def test_beside_the_recipe_nothing_changes(project: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(project)
    assert load_recipe("mine.yaml").data.train[0] == "rows.jsonl"
    assert load_recipe(str(project / "mine.yaml")).model.path == "tiny"
