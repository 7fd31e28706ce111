"""Ways of sampling through the whole flow: groups that go on in the next step, and an agent whose
requests join replies that are being decoded."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import train_here
from tests.e2e.outcomes import logged_metrics

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]


def test_unfinished_groups_go_on_in_the_next_step(tiny_recipe: Path, tmp_path: Path) -> None:
    train_here(
        tiny_recipe,
        tmp_path / "home",
        "rollout.extra_prompts=2",
        "rollout.carry_over=1",
        "algorithm={name: grpo, correction: {level: token, upper: 2.0}}",
        "training={num_iterations: 1, steps_per_iteration: 3, prompts_per_step: 8}",
    )
    metrics = logged_metrics(tmp_path / "home")
    assert metrics["carried_groups"] == [2.0, 2.0, 0.0]
    assert metrics["staleness_max"] == [0.0, 1.0, 1.0]


def rows(path: Path, first: int, count: int) -> str:
    lines = []
    for number in range(first, first + count):
        row: dict[str, Any] = {
            "data_source": "talks",
            "prompt": [{"role": "user", "content": f"say {number}"}],
            "env_class": "talker",
            "reward_spec": {"method": "rule", "ground_truth": 1 + number % 5},
            "extra_info": {"index": number},
        }
        lines.append(json.dumps(row))
    path.write_text("\n".join(lines))
    return str(path)


def test_an_agents_requests_are_answered_as_they_come(tiny_model_dir: Path, tmp_path: Path) -> None:
    values = {
        "name": "talks",
        "model": {"path": str(tiny_model_dir)},
        "fsdp": {"param_dtype": "float32"},
        "data": {
            "train": [rows(tmp_path / "train.jsonl", 0, 8)],
            "eval": [rows(tmp_path / "eval.jsonl", 8, 4)],
            "max_prompt_length": 200,
        },
        "environments": {"talker": {"agent": "tests.rollout.agents.players:talker"}},
        "rollout": {
            "samples_per_prompt": 2,
            "max_new_tokens": 8,
            "max_context_length": 400,
            "episodes": {"continuous": True},
        },
        "training": {"num_iterations": 1, "steps_per_iteration": 2, "prompts_per_step": 4},
        "evaluation": {"max_new_tokens": 8},
        "placement": {"threads_per_device": 1},
    }
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(values))
    train_here(recipe, tmp_path / "home")
    metrics = logged_metrics(tmp_path / "home")
    assert metrics["failed_rows"] == [0.0, 0.0]
    assert metrics["reward_mean"] == [1.0, 1.0]
    assert all(1.0 < turns < 4.0 for turns in metrics["turns_mean"])
