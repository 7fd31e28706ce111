"""Projects that `rl-train init` writes: each passes its own test, its rows are good, and it
trains."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl_core.errors import RecipeError, StorageError
from rl_core.runs.recipes import load_recipe
from rl_core.runs.starters import PLACEHOLDER, starter_names, write_starter
from tests.command import REPOSITORY, rl_train

FIRST = "own"
OTHERS = [pytest.param(name, marks=pytest.mark.long) for name in starter_names() if name != FIRST]


@pytest.mark.parametrize("name", [FIRST, *OTHERS])
def test_a_new_project_passes_its_test_and_its_rows_are_good(name: str, tmp_path: Path):
    home, folder = tmp_path / "home", tmp_path / "My Project"
    done = rl_train(home, "init", str(folder), "--from", name)
    assert done.returncode == 0, done.stderr
    texts = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    assert not any(PLACEHOLDER.encode() in text for text in texts)
    assert 'name: "my-project"' in (folder / "recipe.yaml").read_text()
    paths = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
    tested = subprocess.run(
        [sys.executable, "-m", "unittest"], cwd=folder, env=paths, capture_output=True, text=True
    )
    assert tested.returncode == 0, tested.stderr
    good = rl_train(
        home, "validate", "--recipe", "recipe.yaml", cwd=folder, PYTHONPATH=str(REPOSITORY)
    )
    assert good.returncode == 0, good.stdout + good.stderr
    assert "no training row repeats" in good.stdout


@pytest.mark.parametrize("name", starter_names())
def test_the_rows_of_a_starter_are_those_that_its_script_makes(name: str, tmp_path: Path):
    folder = tmp_path / "project"
    write_starter(name, folder)
    before = {path: path.read_bytes() for path in (folder / "rows").rglob("*.*")}
    subprocess.run([sys.executable, "make_rows.py"], cwd=folder, check=True)
    assert {path: path.read_bytes() for path in (folder / "rows").rglob("*.*")} == before


def test_a_folder_with_files_is_left_alone(tmp_path: Path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(StorageError, match="is not an empty folder; name a new one"):
        write_starter("own", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("name", ["123", "true", "null", "1e5", "2024-01-01"])
def test_a_name_that_yaml_reads_as_something_else_names_a_recipe(name: str, tmp_path: Path):
    write_starter("own", tmp_path / name)
    assert load_recipe(str(tmp_path / name / "recipe.yaml")).name == name


def test_a_folder_under_version_control_becomes_a_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    inner = tmp_path / "shop" / "notes"
    inner.mkdir(parents=True)
    (tmp_path / "shop" / ".git").mkdir()
    monkeypatch.chdir(inner)
    with pytest.raises(StorageError, match="is not an empty folder"):
        write_starter("own", Path(".."))
    inner.rmdir()
    monkeypatch.chdir(tmp_path / "shop")
    write_starter("own", Path("."))
    assert load_recipe("recipe.yaml").name == "shop"


def test_an_unknown_starter_is_answered_with_the_nearest(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"did you mean 'preference'.*there are diffusion, gsm8k"):
        write_starter("preferences", tmp_path / "project")


@pytest.mark.long
@pytest.mark.slow
def test_a_new_project_trains(tiny_model_dir: Path, tmp_path: Path):
    home, folder = tmp_path / "home", tmp_path / "mine"
    write_starter("own", folder)
    short = "training={num_iterations: 1, steps_per_iteration: 1, prompts_per_step: 2}"
    done = rl_train(
        home,
        *("run", "recipe.yaml", f"model.path={tiny_model_dir}", short),
        *("rollout.max_new_tokens=4", "evaluation.max_new_tokens=4", "data.max_prompt_length=400"),
        cwd=folder,
        PYTHONPATH=str(REPOSITORY),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rl-train-mine v1" in done.stdout
    assert (home / "runs").is_dir() and not (folder / ".rl-train").exists()
