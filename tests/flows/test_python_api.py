"""The Python API below the runs: what it makes of objects, rows and settings."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.python_api.objects import environment_overrides, reward_overrides, target_of
from flows.python_api.training import assignments
from rl_core.envs import BaseTextEnv
from rl_core.envs.exact_match import ExactMatchEnv
from rl_core.errors import RecipeError
from rl_core.rewards import Sample
from rl_core.rewards.resolve import resolve_scorers
from rl_core.runtime.own_packages import FOLDERS
from tests.command import REPOSITORY


@pytest.fixture(autouse=True)
def _search_path_as_it_was() -> Iterator[None]:
    before, folders = list(sys.path), os.environ.get(FOLDERS)
    yield
    sys.path[:] = before
    os.environ.pop(FOLDERS, None)
    if folders is not None:
        os.environ[FOLDERS] = folders


def test_settings_become_dotted_assignments():
    given = {"lora.rank": 8, "data.train": ["a.jsonl"], "lora.dropout": None}
    assert assignments(given) == ["lora.rank=8", 'data.train=["a.jsonl"]', "lora.dropout=null"]
    with pytest.raises(RecipeError, match=r"overrides\['seed'\]: expected a number"):
        assignments({"seed": object()})


def test_a_class_of_a_module_is_named_by_its_module(tmp_path: Path):
    assert target_of(ExactMatchEnv, tmp_path) == "rl_core.envs.exact_match:ExactMatchEnv"
    assert not list(tmp_path.iterdir())


def test_a_local_class_and_a_function_are_found_by_another_process(tmp_path: Path):
    def shouting(sample: Sample) -> float:
        return float(sample.text.isupper())

    class Local(BaseTextEnv):
        class Config(BaseTextEnv.Config):
            patience: int = 3

        def step(self, action):
            return {"observations": [], "reward": 1.0, "done": True, "metadata": {}}

    (environment,) = environment_overrides({"local": Local}, tmp_path)
    (reward,) = reward_overrides([shouting], tmp_path)
    target = environment.partition("=")[2].strip('"')
    scorer = reward.partition('"target": "')[2].partition('"')[0]
    (found,) = resolve_scorers([{"target": scorer}])
    assert found[0] == "shouting"
    code = f"""
import importlib
from rl_core.rewards import Sample
def load(target):
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
env = load({target!r})
row = {{"reward_spec": {{"ground_truth": "x"}}}}
print(env.Config().patience, env({{}}, row).step("x")["reward"])
scorer = load({scorer!r})
print(scorer(scorer.Config()).score([Sample(prompt="", replies=("ABC",))]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{tmp_path}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["3 1.0", "[1.0]"]


def test_what_is_no_environment_or_reward_is_named(tmp_path: Path):
    with pytest.raises(RecipeError, match=r"environments\['a'\]: expected a subclass"):
        environment_overrides({"a": int}, tmp_path)  # type: ignore[dict-item]
    with pytest.raises(RecipeError, match=r"rewards\[0\]: a lambda has no name"):
        reward_overrides([lambda sample: 0.0], tmp_path)
    with pytest.raises(RecipeError, match=r"rewards\[1\]: expected a function"):
        reward_overrides([len_of, 3], tmp_path)  # type: ignore[list-item]


def len_of(sample: Sample) -> float:
    """Return the length of a reply."""
    return float(len(sample.text))


def test_train_stays_the_function_when_the_package_of_its_name_is_imported():
    """As the first run of a notebook does, before the second."""
    code = (
        "import rl_core as rl; before = rl.train; import rl_core.train.needs; "
        "from rl_core.train.needs import check_packages; from rl_core import train; "
        "print(before is rl.train is train, callable(train))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.stdout.strip() == "True True", done.stderr


def test_importing_the_library_imports_no_flow():
    code = (
        "import sys, rl_core; print([m for m in ('flows', 'torch', 'prefect') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]", done.stderr
