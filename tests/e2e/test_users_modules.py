"""Modules beside a recipe: those it names are used, and those that happen to have a name of ours
harm nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import DEADLINE_S, REPOSITORY, Run

TAKEN = (
    "tasks",
    "schemas",
    "flows",
    "skyrl_gym",
    "deployments",
    "datasets",
    "evaluate",
    "tokenizers",
)
"""Packages of ours, and some that transformers and peft import."""
AS_INSTALLED = f"""
import os, sys
import flows.cli
sys.path[:] = [*(folder for folder in sys.path if folder != {str(REPOSITORY)!r}), os.getcwd(), {str(REPOSITORY)!r}]
flows.cli.main()
"""  # noqa: E501
"""`rl-train` as an editable installation has it: the current folder is searched just before our
packages."""
REWARD = '''
from rl_core.rewards import Modality, Scorer

class LowerCase(Scorer):
    """The share of lower-case letters."""

    modalities = frozenset({Modality.TEXT})

    def score(self, samples):
        return [sum(letter.islower() for letter in sample.text) / max(1, len(sample.text)) for sample in samples]
'''  # noqa: E501


@pytest.fixture
def folder(tiny_recipe: Path, tmp_path: Path) -> Path:
    """A user's folder: a recipe with a reward of its own, and modules with unlucky names."""
    values = yaml.safe_load(tiny_recipe.read_text())
    values["rewards"] = [{"target": "letters:LowerCase"}]
    values["training"] |= {"num_iterations": 1, "steps_per_iteration": 1}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values))
    (tmp_path / "letters.py").write_text(REWARD)
    for name in TAKEN:
        (tmp_path / f"{name}.py").write_text(
            f"raise RuntimeError('the module {name} of the user')\n"
        )
    return tmp_path


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | Run.shared_server | {"RL_TRAIN_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, "-P", "-c", AS_INSTALLED, "run", "mine.yaml", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )


def test_modules_with_names_of_ours_beside_a_recipe_do_not_disturb_its_run(folder: Path):
    done = command(folder)
    assert done.returncode == 0, done.stdout
    assert "of the user" not in done.stdout
    assert "reward 0." in done.stdout, "the user's own reward was not asked"


@pytest.mark.parametrize("name", ["tasks", "datasets", "random"])
def test_a_class_in_a_module_whose_name_is_taken_is_refused_with_the_reason(
    folder: Path, name: str
):
    (folder / "letters.py").rename(folder / f"{name}.py")
    done = command(folder, f"rewards=[{{target: '{name}:LowerCase'}}]", "--dry-run")
    assert done.returncode == 2, done.stdout
    said = done.stdout.strip().splitlines()[-1]
    assert f"target '{name}:LowerCase' cannot be imported: a module of this name is at" in said
    assert said.endswith(f"and comes before {folder / name}.py; give your file another name")
