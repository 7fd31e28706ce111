"""An environment that answers with a picture, through the whole flow on the tiny vision-language
model."""

import base64
import json
import random
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from rl_core.builtin.data.pictures import Scene, draw
from rl_core.envs import BaseTextEnvStepOutput
from rl_core.envs.geo3k import Geo3kEnv
from tests.e2e.conftest import train_here
from tests.e2e.outcomes import logged_metrics, run_folder

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]


class SecondLookEnv(Geo3kEnv):
    """Shows another picture after the first reply; the second is rewarded by its length."""

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        if self.turns == 2:
            done = BaseTextEnvStepOutput(
                observations=[], reward=float(len(action) % 3), done=True, metadata={}
            )
            return done
        picture = draw(random.Random(len(action)), Scene.NUMBER).png
        url = f"data:image/png;base64,{base64.b64encode(picture).decode()}"
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "text", "text": "What number is written?"},
        ]
        return BaseTextEnvStepOutput(
            observations=[{"role": "user", "content": parts}], reward=0.0, done=False, metadata={}
        )


def test_rows_of_several_turns_train_with_the_pictures_of_their_observations(
    tiny_vlm_dir: Path, tmp_path: Path
) -> None:
    values = {
        "name": "second-look",
        "domain": "vision",
        "model": {"path": str(tiny_vlm_dir), "frozen": []},
        "fsdp": {"param_dtype": "float32"},
        "data": {
            "train": [{"pictures": 12, "seed": 1}],
            "eval": [{"pictures": 4, "seed": 2}],
            "max_prompt_length": 128,
            "default_env_class": "second_look",
        },
        "environments": {"second_look": {"target": f"{__name__}:SecondLookEnv"}},
        "algorithm": {"name": "grpo"},
        "rollout": {"samples_per_prompt": 4, "max_new_tokens": 6, "max_context_length": 400},
        "training": {"num_iterations": 1, "steps_per_iteration": 2, "prompts_per_step": 2},
        "evaluation": {"max_new_tokens": 6},
        "placement": {"threads_per_device": 1},
    }
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(values))
    train_here(recipe, tmp_path / "home")
    metrics = {name: steps[-1] for name, steps in logged_metrics(tmp_path / "home").items()}
    assert metrics["delta_log_prob_max"] < 1e-3, "the trainer saw other pictures than the engine"
    rows: list[dict[str, Any]] = []
    for file in sorted((run_folder(tmp_path / "home") / "rollouts").glob("*.parquet")):
        rows += pq.read_table(file).to_pylist()
    failed = [row for row in rows if row["failed"]]
    # An untrained model writes a picture's token itself now and then.
    for row in failed:
        assert "observation after turn 1: a reply wrote 1 tokens that stand for" in row["error"]
    played = [row for row in rows if not row["failed"]]
    assert len(rows) == 16 and len(played) >= 12
    for row in played:
        assert [turn["role"] for turn in row["turns"]] == ["assistant", "user", "assistant"]
        shown = json.loads(row["turns"][1]["content"])
        assert shown[0] == {"type": "image_url", "image_url": "in the row"}, "not its bytes"
