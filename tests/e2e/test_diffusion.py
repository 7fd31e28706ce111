"""Lettering with adapters and their moving average through the whole flow, rewarded by what
RapidOCR reads for real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from rl_core.evaluation.runner import read_samples
from rl_core.rewards import Sample
from rl_core.rewards.base import reward_scorers
from tests.e2e.conftest import Run, assert_kills_change_nothing, train_here
from tests.e2e.outcomes import is_trained, logged_metrics, run_folder

pytest.importorskip("rapidocr", reason="the extra `rewards` is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.long]

# Random pictures of this size look to the reader like twos, if like anything, and it is sure of
# none.
WORDINGS = (
    'a photo of the digit "2"',
    'the digit "2" by hand',
    'a drawing of "2"',
    'the number "2" in white ink',
)
HELD_OUT = ('an image of "2"', '"2" on black paper', 'a picture of the figure "2"', 'a scan of "2"')
READER = {"name": "ocr", "min_confidence": 0.0}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory, tiny_sd3_dir: Path) -> Path:
    """Three iterations of one step on the tiny model."""
    folder = tmp_path_factory.mktemp("lettering")
    for name, prompts in (("train", WORDINGS), ("eval", HELD_OUT)):
        (folder / f"{name}.txt").write_text("\n".join(prompts) + "\n")
    values: dict[str, Any] = {
        "name": "lettering",
        "domain": "diffusion",
        "model": {"path": str(tiny_sd3_dir)},
        "lora": {"rank": 4, "alpha": 8},
        "ema_lora": {"decay": 0.5},
        "fsdp": {"param_dtype": "float32"},
        "optimizer": {"learning_rate": 1e-3},
        "data": {"train": [str(folder / "train.txt")], "eval": [str(folder / "eval.txt")]},
        "rewards": [READER],
        "algorithm": {"name": "flow_grpo"},
        "diffusion": {"height": 32, "width": 32, "num_steps": 3, "eval_steps": 3},
        "rollout": {"samples_per_prompt": 4},
        "training": {"num_iterations": 3, "steps_per_iteration": 1, "prompts_per_step": 2},
        "placement": {"threads_per_device": 1},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture(scope="module")
def undisturbed_lettering(
    recipe: Path, ray_cluster: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The home of a run that nothing disturbed."""
    home = tmp_path_factory.mktemp("undisturbed-lettering")
    train_here(recipe, home)
    return home


def test_rewards_are_what_is_read_in_the_pictures_and_they_train(
    undisturbed_lettering: Path, tiny_sd3_dir: Path
) -> None:
    run = run_folder(undisturbed_lettering)
    rows = [
        row
        for label in ("baseline", "final")
        for row in read_samples(run / f"samples/evaluate-{label}.jsonl")
    ]
    cls, settings = reward_scorers.resolve(READER, "the test")
    samples = []
    for row in rows:
        with Image.open(row["made"]) as picture:
            samples.append(Sample(row["prompt"], image=picture.copy()))
    assert [row["ocr"] for row in rows] == pytest.approx(
        list(cls(settings).score(samples)), abs=1e-6
    )
    assert [row["reward"] for row in rows] == [row["ocr"] for row in rows]

    metrics = logged_metrics(undisturbed_lettering)
    assert len(metrics["reward_mean"]) == 3
    assert max(metrics["reward_mean"]) > 0, "nothing was ever read"
    assert any(
        std > 0 < norm
        for std, norm in zip(metrics["reward_std"], metrics["grad_norm"], strict=True)
    )
    assert is_trained(tiny_sd3_dir, run / "model")


def test_a_run_whose_worker_and_flow_were_killed_ends_bit_identical(
    recipe: Path, undisturbed_lettering: Path, start: Callable[..., Run], tmp_path: Path
) -> None:
    assert_kills_change_nothing(start, recipe, tmp_path, undisturbed_lettering)
