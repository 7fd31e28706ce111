"""From `rl-train prep -c text` to a trained model, by the names that a user types."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rl_core.data.store.prompt_rows import load_prepared
from tests.command import answer, rl_train
from tests.e2e.conftest import train_here
from tests.e2e.outcomes import is_trained, run_folder

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]
ARTIFACT = "art://omni3/rl/text/data@latest"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the stage `text` was published."""
    folder = tmp_path_factory.mktemp("published-text")
    home, raw = folder / "home", folder / "fixture"
    answer(home, "data", "make-fixture", str(raw))
    paths = ["--input-dir", str(raw / "text" / "raw"), "--output-dir", str(folder / "text")]
    answer(home, "prep", "-c", "text", *paths, "val_fraction=0.25")
    return home


def test_published_response_rows_are_trained_on_by_name(
    home: Path, tiny_model_dir: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "recipe.yaml"
    values = {
        "name": "published-text",
        "model": {"path": str(tiny_model_dir)},
        "fsdp": {"param_dtype": "float32"},
        "optimizer": {"learning_rate": 0.003},
        "data": {
            "train": [ARTIFACT],
            "eval": [ARTIFACT],
            "max_prompt_length": 400,
            "default_env_class": "gsm8k",
        },
        # A random model never answers right; this gives its replies rewards that differ.
        "rewards": [{"target": "tests.e2e.scorers:LowerCase"}],
        "rollout": {"samples_per_prompt": 4, "max_new_tokens": 8},
        "training": {"num_iterations": 1, "steps_per_iteration": 2, "prompts_per_step": 4},
        "evaluation": {"max_new_tokens": 8},
        "placement": {"threads_per_device": 1},
    }
    recipe.write_text(yaml.safe_dump(values))
    train_here(recipe, home)
    (prepared,) = home.glob("cache/published-text-*/train.parquet")
    items = load_prepared(prepared)
    assert len(items) == 20
    assert all(item["env_extras"]["reward_spec"]["ground_truth"] is not None for item in items)
    assert is_trained(tiny_model_dir, run_folder(home) / "model")


def test_a_dry_run_says_what_the_rows_lack(home: Path) -> None:
    done = rl_train(home, "run", "smoke/text", f"data.train=[{ARTIFACT}]", "--dry-run")
    assert done.returncode == 2
    assert "train-00000.jsonl:1 field env_class: missing" in done.stderr
    assert "data.default_env_class" in done.stderr
