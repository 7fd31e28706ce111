"""The unified model's trainer on the tiny model: a tree of plans and pictures, one step for both,
and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.trainers.domains.unified import UnifiedTrainer
from rl_core.trainers.domains.writing_and_drawing import ROOT
from rl_core.trainers.tree import ID, PARENT
from schemas.recipe import Recipe
from tests.rollout.named_rows import assert_named
from tests.trainers.domains.test_prompt_enhancer import seen

NUM_STEPS, NUM_PROMPTS, NUM_PLANS, NUM_PICTURES = 2, 2, 3, 2
SHADE = "tests.trainers.shades:ShadeScorer"


def make_recipe(model_dir: Path, **stages: dict[str, Any]) -> Recipe:
    images = {
        "algorithm": {"name": "flow_grpo", "kl": {"coef": 0.0}},
        "samples_per_plan": NUM_PICTURES,
    }
    return Recipe.model_validate(
        {
            "name": "unified",
            "domain": "unified",
            "model": {"path": str(model_dir)},
            "fsdp": {"param_dtype": "float32"},
            "optimizer": {"learning_rate": 1e-3, "eps": 1e-4},
            "data": {"train": ["unused"], "eval": ["unused"]},
            "rewards": [{"target": SHADE, "key": "shade"}],
            "rollout": {"samples_per_prompt": NUM_PLANS, "max_new_tokens": 4},
            "diffusion": {"height": 32, "width": 32, "num_steps": 3, "eval_steps": 2},
            "unified": {
                "text": stages.get("text", {}),
                "images": images | stages.get("images", {}),
            },
            "training": {
                "num_iterations": 1,
                "steps_per_iteration": NUM_STEPS,
                "prompts_per_step": NUM_PROMPTS,
            },
            "placement": {"threads_per_device": 1, "micro_batch_size": 4},
        }
    )


def start(model_dir: Path, **stages: dict[str, Any]) -> UnifiedTrainer:
    trainer = UnifiedTrainer(make_recipe(model_dir, **stages), str(model_dir), items())
    trainer.build()
    return trainer


def items() -> list[dict[str, Any]]:
    return [
        {
            "uid": f"row-{row}",
            "prompt": f"{row + 1} {{braces}}",
            "metadata": {"level": row / 4},
            "media_refs": [],
        }
        for row in range(NUM_PROMPTS * NUM_STEPS)
    ]


def weights(trainer: UnifiedTrainer) -> dict[str, Tensor]:
    return trainer.backends()["policy"].full_state()[0]


def moved(before: dict[str, Tensor], after: dict[str, Tensor], part: str) -> bool:
    return any(not torch.equal(before[name], after[name]) for name in before if f".{part}." in name)


@pytest.mark.usefixtures("ray_cluster")
def test_one_step_trains_both_stages_and_a_resumed_one_equals_it(
    tiny_unified_dir: Path, tmp_path: Path
) -> None:
    trainer = start(tiny_unified_dir)
    try:
        before = weights(trainer)
        drawn = seen(trainer)
        metrics, text = trainer.step()
        assert_tree(text, *drawn)
        trainer.save(str(tmp_path))
        state, one = trainer.state_dict(), weights(trainer)
        assert moved(before, one, "decoder") and moved(before, one, "transformer")
        assert metrics["text/grad_norm"] > 0 < metrics["images/grad_norm"]
        assert metrics["text/joint_grad_norm"] == metrics["images/joint_grad_norm"] > 0
        assert [path.name for path in tmp_path.iterdir()] == ["policy"]
        trainer.step()
        two = weights(trainer)
        trainer.load(str(tmp_path))
        trainer.load_state_dict(state)
        trainer.step()
        again = weights(trainer)
        assert again.keys() == two.keys()
        assert all(torch.equal(value, two[name]) for name, value in again.items())
        assert_evaluation(trainer)
    finally:
        trainer.close()


def assert_tree(text: Any, images: Any) -> None:
    """Ids, what was drawn, what it was scored against, and what came of that."""
    plans, pictures = text.non_tensor_batch, images.non_tensor_batch
    assert len(text) == NUM_PROMPTS * NUM_PLANS
    assert len(images) == len(text) * NUM_PICTURES
    assert_named(text)
    assert_named(images, PARENT)
    said = dict(zip(plans[ID], plans["response"], strict=True))
    asked = {item["uid"]: item for item in items()}
    for row, parent in enumerate(pictures[PARENT]):
        assert pictures["response"][row] == said[parent]
        assert pictures[ROOT][row] == parent.rpartition("/")[0]
        assert pictures["prompt"][row] == asked[pictures[ROOT][row]]["prompt"]
        assert pictures["metadata"][row] == asked[pictures[ROOT][row]]["metadata"]
    by_hand = {
        name: images.tensor("rewards")[pictures[PARENT] == name].mean().item() for name in plans[ID]
    }
    assert text.tensor("rewards").tolist() == pytest.approx([by_hand[name] for name in plans[ID]])


def assert_evaluation(trainer: UnifiedTrainer) -> None:
    played = trainer.evaluate(items()[:3], max_new_tokens=4)
    again = trainer.evaluate(items()[:3], max_new_tokens=4)
    assert trainer.held_out_scores == ("shade",)
    assert torch.equal(played.tensor("rewards"), again.tensor("rewards"))
    assert torch.equal(played.tensor("rewards"), played.tensor("shade"))
    assert played.non_tensor_batch["prompt"].tolist() == [item["prompt"] for item in items()[:3]]
    assert all(picture.shape == (32, 32, 3) for picture in played.non_tensor_batch["images"])


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_stage_without_weight_is_scored_and_the_other_learns_alone(
    tiny_unified_dir: Path,
) -> None:
    trainer = start(tiny_unified_dir, images={"weight": 0, "samples_per_plan": 1})
    try:
        before = weights(trainer)
        metrics, _ = trainer.step()
        after = weights(trainer)
        assert moved(before, after, "decoder") and not moved(before, after, "transformer")
        assert "images/reward_mean" in metrics and "images/grad_norm" not in metrics
    finally:
        trainer.close()
