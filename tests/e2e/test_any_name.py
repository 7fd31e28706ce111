"""A run whose home, recipe, files, columns, environment, metric and model have names that a disk
takes and that mean something to a database, an address, a shell or markup."""

import json
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from mlflow import MlflowClient

from rl_core.runtime.home import Home
from rl_core.tracking.keys import original_key
from rl_core.tracking.model_versions import newest
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from tests.e2e.conftest import train_here
from tests.e2e.outcomes import run_folder

PRINTABLE = "".join(one for one in string.printable if one.isprintable() and one != "/")
ENVIRONMENT = "digits (1)@home"
METRIC = "acc@1 [%]"
MODEL = "Tiny (1).5 it's"


class DigitsEnv(BaseTextEnv):
    """Pays for digits."""

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.share = 0.0

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.share = sum(letter.isdigit() for letter in action) / max(1, len(action))
        return BaseTextEnvStepOutput(observations=[], reward=self.share, done=True, metadata={})

    def get_metrics(self) -> dict[str, float]:
        return {METRIC: self.share}


@pytest.mark.slow
def test_a_run_takes_any_name(tiny_recipe: Path, tmp_path: Path, ray_cluster: None):
    folder = tmp_path / "split=train @ work (1) [red]"
    folder.mkdir()
    files = [folder / f"{part} {PRINTABLE}.jsonl" for part in ("train", "test")]
    for file, numbers in zip(files, (range(16), range(16, 20)), strict=True):
        rows = [
            {
                "prompt": [{"role": "user", "content": f"say {number}"}],
                "env_class": ENVIRONMENT,
                "reward_spec": {"ground_truth": str(number)},
                "data_source": "org/rows@v2 (1)",
            }
            for number in numbers
        ]
        file.write_text("\n".join(map(json.dumps, rows)))
    values = yaml.safe_load(tiny_recipe.read_text())
    values["data"] |= {
        "train": [str(files[0])],
        "eval": [str(files[1])],
        "blend": {"org/rows@v2 (1)": 1.0},
    }
    values["environments"] = {ENVIRONMENT: {"target": f"{__name__}:{DigitsEnv.__name__}"}}
    values["registration"] = {"model_name": MODEL}
    values["training"] = {"num_iterations": 1, "steps_per_iteration": 1, "prompts_per_step": 8}
    recipe = folder / "[bold] it's 100%.yaml"
    recipe.write_text(yaml.safe_dump(values))
    home = Home(tmp_path / "home? 50%41 #1 & more")

    train_here(recipe, home.root)

    (run,) = MlflowClient(home.mlflow_uri).search_runs(["1"])
    assert f"env/{ENVIRONMENT}/{METRIC}" in map(original_key, run.data.metrics)
    assert "data.blend.org/rows@v2 (1)" in map(original_key, run.data.params)
    inputs = {entry.dataset.name for entry in run.inputs.dataset_inputs}
    assert {f"{folder.name}/{file.name}" for file in files} < inputs
    assert newest(home.mlflow_uri, MODEL) is not None
    assert (run_folder(home.root) / "report.html").is_file()
