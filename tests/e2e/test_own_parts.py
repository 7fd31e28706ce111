"""Parts from a module of the user's, outside the repository, in runs from the recipe to the
registered model. Modules beside a recipe that happen to have a name of ours harm nothing."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import DEADLINE_S, REPOSITORY, Run
from tests.e2e.outcomes import (
    is_trained,
    logged_metrics,
    run_folder,
    trained_weights,
    weights_in,
)
from tests.parts.examples import write_examples

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
_AS_INSTALLED = f"""
import os, sys
import flows.cli
sys.path[:] = [*(folder for folder in sys.path if folder != {str(REPOSITORY)!r}), os.getcwd(), {str(REPOSITORY)!r}]
flows.cli.main()
"""  # noqa: E501
AS_INSTALLED = ("-P", "-c", _AS_INSTALLED)
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
    """A user's folder with a recipe of two short iterations."""
    values = yaml.safe_load(tiny_recipe.read_text())
    values["training"] |= {"num_iterations": 2, "steps_per_iteration": 2}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(values))
    return tmp_path


@pytest.fixture
def beside_taken_names(folder: Path) -> Path:
    """The same, with a reward of the user's own, and modules with unlucky names."""
    add(folder, rewards=[{"target": "letters:LowerCase"}])
    (folder / "letters.py").write_text(REWARD)
    for name in TAKEN:
        (folder / f"{name}.py").write_text(f"raise RuntimeError('the module {name} of the user')\n")
    return folder


def command(
    folder: Path, *arguments: str, python: tuple[str, ...] = ("-m", "flows.cli"), **paths: str
) -> subprocess.CompletedProcess[str]:
    """`rl-train run mine.yaml` in the user's folder."""
    environment = os.environ | Run.shared_server | paths | {"RL_TRAIN_HOME": str(folder / "home")}
    return subprocess.run(
        [sys.executable, *python, "run", "mine.yaml", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE_S,
    )


def add(folder: Path, **blocks: Any) -> None:
    values = yaml.safe_load((folder / "mine.yaml").read_text())
    (folder / "mine.yaml").write_text(yaml.safe_dump(values | blocks))


@pytest.mark.long
def test_a_backend_from_outside_the_repository_trains_a_run(
    beside_taken_names: Path, tiny_model_dir: Path
):
    """The user's own reward is asked, and no module is mistaken for one of ours."""
    folder = beside_taken_names
    write_examples(folder, "plain_backend.py")
    add(folder, backend={"target": "plain_backend:PlainBackend", "momentum": 0.5})
    done = command(folder, "optimizer.learning_rate=0.5", python=AS_INSTALLED)
    assert done.returncode == 0, done.stdout
    assert "PlainBackend trains" in done.stdout
    assert "of the user" not in done.stdout
    assert "reward 0." in done.stdout, "the user's own reward was not asked"
    assert is_trained(tiny_model_dir, run_folder(folder / "home") / "model")
    norms = logged_metrics(folder / "home")["grad_norm"]
    assert len(norms) == 4 and max(norms) > 0


@pytest.mark.slow
def test_the_other_parts_from_outside_the_repository_are_those_of_a_run(
    folder: Path, tiny_model_dir: Path
):
    parts = {
        "bundle": {"target": "frozen_embeddings:FrozenEmbeddings"},
        "stack": {"target": "beginnings:Beginnings", "num_tokens": 2},
        "engine": {"target": "short_replies:ShortReplies", "max_tokens": 5},
        "sync": {"target": "listed_sync:ListedSync", "file": str(folder / "syncs")},
        "trainer": {"target": "timed_steps:TimedSteps"},
    }
    names = [block["target"].partition(":")[0] for block in parts.values()]
    write_examples(folder, *(f"{name}.py" for name in names))
    add(folder, **parts)
    done = command(
        folder,
        "rollout.engine=dedicated",
        "placement.num_devices=2",
        "placement.rollout_devices=1",
        "training.num_iterations=1",
        "evaluation.max_new_tokens=5",
        PYTHONPATH=os.pathsep.join([str(folder), str(REPOSITORY)]),
    )
    assert done.returncode == 0, done.stdout
    metrics = logged_metrics(folder / "home")
    assert max(metrics["response_length_max"]) <= 5, "the engine"
    assert len(metrics["seconds/whole_step"]) == 2, "the trainer"
    before, after = weights_in(tiny_model_dir), trained_weights(folder / "home")
    changed = {name for name in before.keys() & after.keys() if (before[name] != after[name]).any()}
    assert changed, "nothing was trained"
    assert not [name for name in changed if "embed_tokens" in name], "the bundle"
    assert len((folder / "syncs").read_text().splitlines()) >= 2, "the sync"
    assert 0 < max(metrics["trained_tokens"]) <= 2 * 32, "the stack"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tasks", "datasets", "random"])
def test_a_class_in_a_module_whose_name_is_taken_is_refused_with_the_reason(
    beside_taken_names: Path, name: str
):
    folder = beside_taken_names
    (folder / "letters.py").rename(folder / f"{name}.py")
    done = command(
        folder, f"rewards=[{{target: '{name}:LowerCase'}}]", "--dry-run", python=AS_INSTALLED
    )
    assert done.returncode == 2, done.stdout
    said = done.stdout.strip().splitlines()[-1]
    assert f"target '{name}:LowerCase' cannot be imported: a module of this name is at" in said
    assert said.endswith(f"and comes before {folder / name}.py; give your file another name")
