"""Multi-turn maths and programs, with scorers beside the environment, through the whole flow on the
tiny model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.conftest import train_here
from tests.e2e.outcomes import logged_metrics

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

SUMS = [(first, second) for first in range(1, 5) for second in range(1, 5)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def row(env_class: str, index: int, question: str, truth: Any) -> dict[str, Any]:
    return {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": question}],
        "env_class": env_class,
        "reward_spec": {"method": "rule", "ground_truth": truth},
        "extra_info": {"index": index},
    }


def maths(index: int, first: int, second: int) -> dict[str, Any]:
    return row("gsm8k_multi_turn", index, f"{first}+{second}?", str(first + second))


def program(index: int, first: int, second: int) -> dict[str, Any]:
    tests = [
        {"input": f"{first} {second}\n", "output": f"{first + second}\n"},
        {"input": "2 2\n", "output": "4\n"},
    ]
    return row("lcb", index, f"Add two numbers, {first} and {second} say.", json.dumps(tests))


RECIPES: dict[str, tuple[Callable[[int, int, int], dict[str, Any]], dict[str, Any]]] = {
    "gsm8k_multi_turn": (maths, {"environments": {"gsm8k_multi_turn": {"max_turns": 2}}}),
    "lcb": (program, {"environments": {"lcb": {"timeout_s": 10}}}),
}


@pytest.mark.parametrize("env_class", RECIPES)
def test_a_recipe_trains_with_environment_and_scorers(
    env_class: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    make, options = RECIPES[env_class]
    rows = [make(index, *numbers) for index, numbers in enumerate(SUMS)]
    values = {
        "name": env_class.replace("_", "-"),
        "model": {"path": str(tiny_model_dir)},
        "fsdp": {"param_dtype": "float32"},
        "data": {
            "train": [write_rows(tmp_path / "train.jsonl", rows[:12])],
            "eval": [write_rows(tmp_path / "eval.jsonl", rows[12:])],
            "max_prompt_length": 200,
        },
        "rollout": {"samples_per_prompt": 4, "max_new_tokens": 6, "max_context_length": 400},
        # A random model earns nothing from its environment: the scorers give it something to learn.
        "rewards": [
            {"name": "format", "weight": 0.5, "pattern": "[a-z].*"},
            {"name": "length", "weight": 1.0, "max_length": 6, "buffer": 3},
        ],
        "reward_service": {"truncated": "keep"},
        "training": {"num_iterations": 1, "steps_per_iteration": 2, "prompts_per_step": 4},
        "evaluation": {"max_new_tokens": 6},
        "placement": {"threads_per_device": 1},
        **options,
    }
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(values))
    train_here(recipe, tmp_path / "home")
    metrics = {name: values[-1] for name, values in logged_metrics(tmp_path / "home").items()}
    turns = 2.0 if env_class == "gsm8k_multi_turn" else 1.0
    assert metrics["turns_mean"] == turns
    assert (
        metrics["env_failures/init"]
        == metrics["env_failures/step"]
        == metrics["failed_rows"]
        == 0.0
    )
    assert metrics[f"env/{env_class}/correct"] == metrics["reward/environment/mean"] == 0.0
    assert -1.0 <= metrics["reward/length/mean"] <= 0.0
    assert 0.0 <= metrics["reward/format/mean"] <= 1.0
    expected = (
        metrics["reward/environment/mean"]
        + 0.5 * metrics["reward/format/mean"]
        + metrics["reward/length/mean"]
    )
    assert metrics["reward_mean"] == pytest.approx(expected, abs=1e-5)
