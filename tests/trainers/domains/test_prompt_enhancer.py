"""The prompt enhancer on tiny models: who learns, who is told what, and resumed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.trainers.domains.prompt_enhancer import PromptEnhancerTrainer
from rl_core.trainers.domains.unified import UnifiedTrainer
from rl_core.trainers.tree import ID, PARENT
from schemas.recipe import Recipe
from tests.models.tiny_diffusion import tiny_sd3
from tests.rollout.named_rows import assert_named

NUM_STEPS, NUM_PROMPTS, NUM_REWRITES, NUM_PICTURES = 2, 2, 3, 2
SHADE = "tests.trainers.shades:ShadeScorer"
FLOW_GRPO: dict[str, Any] = {"name": "flow_grpo", "kl": {"coef": 0.0}}
NFT: dict[str, Any] = {"name": "diffusion_nft", "old_policy": "current"}


@pytest.fixture(scope="module")
def pipeline_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_sd3(tmp_path_factory.mktemp("painter") / "tiny-sd3")


@dataclass
class Job:
    """How to start a trainer."""

    model_dir: Path
    pipeline_dir: Path

    def recipe(
        self,
        *,
        text: bool = True,
        images: bool = True,
        num_devices: int = 1,
        drawing_devices: int = 0,
        drawing: dict[str, Any] = FLOW_GRPO,
    ) -> Recipe:
        return Recipe.model_validate(
            {
                "name": "enhancer",
                "domain": "pe",
                "model": {"path": str(self.model_dir)},
                "fsdp": {"param_dtype": "float32"},
                "optimizer": {"learning_rate": 1e-3, "eps": 1e-4},
                "data": {"train": ["unused"], "eval": ["unused"]},
                "rewards": [{"target": SHADE, "key": "shade"}],
                "rollout": {"samples_per_prompt": NUM_REWRITES, "max_new_tokens": 4},
                "diffusion": {"height": 32, "width": 32, "num_steps": 3, "eval_steps": 2},
                "tracks": {
                    "text": {
                        "train": text,
                        "system": "say it",
                        "examples": [{"prompt": "2", "rewrite": "two"}],
                    },
                    "images": {
                        "train": images,
                        "model": {"path": str(self.pipeline_dir)},
                        "fsdp": {"param_dtype": "float32"},
                        "optimizer": {"learning_rate": 1e-3, "eps": 1e-4},
                        "algorithm": drawing,
                        "template": "a photo of {rewrite}",
                        "samples_per_rewrite": NUM_PICTURES,
                        "num_devices": drawing_devices,
                    },
                },
                "training": {
                    "num_iterations": 1,
                    "steps_per_iteration": NUM_STEPS,
                    "prompts_per_step": NUM_PROMPTS,
                },
                "placement": {
                    "num_devices": num_devices,
                    "threads_per_device": 1,
                    "micro_batch_size": 2,
                },
            }
        )

    def start(self, **changes: Any) -> PromptEnhancerTrainer:
        trainer = PromptEnhancerTrainer(self.recipe(**changes), str(self.model_dir), items())
        trainer.build()
        return trainer


@pytest.fixture(scope="module")
def job(tiny_model_dir: Path, pipeline_dir: Path) -> Job:
    return Job(tiny_model_dir, pipeline_dir)


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


def weights(trainer: PromptEnhancerTrainer) -> dict[str, Tensor]:
    states = {name: track.learner.backend.full_state()[0] for name, track in trainer.tracks.items()}
    return {
        f"{track}.{name}": value for track, state in states.items() for name, value in state.items()
    }


def seen(trainer: PromptEnhancerTrainer | UnifiedTrainer) -> list[Any]:
    """A list that every rollout of pictures is put into when it has its rewards."""
    found, track = [], trainer.tracks["images"]
    describe = track.describe
    track.describe = lambda rollout: found.append(rollout) or describe(rollout)
    return found


def moved(before: dict[str, Tensor], after: dict[str, Tensor], track: str) -> bool:
    return any(
        not torch.equal(before[name], after[name])
        for name in before
        if name.startswith(f"{track}.")
    )


@pytest.mark.parametrize(
    ("num_devices", "drawing"),
    [(1, FLOW_GRPO), pytest.param(2, NFT, marks=pytest.mark.slow)],
    ids=["one, Flow-GRPO", "two, DiffusionNFT"],
)
@pytest.mark.usefixtures("ray_cluster")
def test_a_step_trains_both_tracks_and_a_resumed_one_equals_it(
    job: Job, tmp_path: Path, num_devices: int, drawing: dict[str, Any]
) -> None:
    trainer = job.start(num_devices=num_devices, drawing=drawing)
    try:
        start = weights(trainer)
        drawn = seen(trainer)
        metrics, text = trainer.step()
        assert_tree(text, *drawn)
        trainer.save(str(tmp_path))
        state = trainer.state_dict()
        one = weights(trainer)
        assert moved(start, one, "text")
        assert moved(start, one, "images")
        assert metrics["text/grad_norm"] > 0 < metrics["images/grad_norm"]
        trainer.step()
        two = weights(trainer)
        trainer.load(str(tmp_path))
        trainer.load_state_dict(state)
        trainer.step()
        assert_equal(weights(trainer), two)
        assert_evaluation(trainer)
    finally:
        trainer.close()


def assert_tree(text: Any, images: Any) -> None:
    """Ids, what was drawn, what it was scored against, and what came of that."""
    rewrites, pictures = text.non_tensor_batch, images.non_tensor_batch
    assert len(text) == NUM_PROMPTS * NUM_REWRITES
    assert len(images) == len(text) * NUM_PICTURES
    assert_named(text)
    assert_named(images, PARENT)
    said = dict(zip(rewrites[ID], rewrites["response"], strict=True))
    asked = {item["uid"]: item for item in items()}
    for row, parent in enumerate(pictures[PARENT]):
        assert pictures["response"][row] == f"a photo of {' '.join(said[parent].split())}"
        original = asked[parent.rpartition("/")[0]]
        assert pictures["prompt"][row] == original["prompt"]
        assert pictures["metadata"][row] == original["metadata"]
    by_hand = {
        name: images.tensor("rewards")[pictures[PARENT] == name].mean().item()
        for name in rewrites[ID]
    }
    assert text.tensor("rewards").tolist() == pytest.approx(
        [by_hand[name] for name in rewrites[ID]]
    )
    assert text.tensor("rewards").std() > 0


def assert_evaluation(trainer: PromptEnhancerTrainer) -> None:
    played = trainer.evaluate(items()[:3], max_new_tokens=4)
    again = trainer.evaluate(items()[:3], max_new_tokens=4)
    assert trainer.held_out_scores == ("shade", "original_reward", "original_shade")
    for name in ("rewards", *trainer.held_out_scores):
        assert torch.equal(played.tensor(name), again.tensor(name))
    assert torch.equal(played.tensor("rewards"), played.tensor("shade"))
    assert not torch.equal(played.tensor("rewards"), played.tensor("original_reward"))
    assert played.non_tensor_batch["prompt"].tolist() == [item["prompt"] for item in items()[:3]]


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor], atol: float = 0.0) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(
            value, other[name], atol=atol, rtol=0, msg=lambda text, n=name: f"{n}: {text}"
        )


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_models_on_devices_of_their_own_learn_and_judge_as_on_one(job: Job) -> None:
    apart, together = job.start(num_devices=2, drawing_devices=1), job.start()
    try:
        one, other = (
            {pid for group in trainer.groups for pid in group.pids()}
            for trainer in (apart, together)
        )
        assert (len(one), len(other)) == (2, 1)
        for trainer in (apart, together):
            trainer.step()
        assert_equal(weights(apart), weights(together))
        assert_evaluation(apart)
    finally:
        apart.close()
        together.close()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_track_that_does_not_learn_is_scored_and_left_as_it_is(job: Job, tmp_path: Path) -> None:
    trainer = job.start(images=False)
    try:
        start = weights(trainer)
        metrics, _ = trainer.step()
        end = weights(trainer)
        assert moved(start, end, "text")
        assert not moved(start, end, "images")
        assert "images/reward_mean" in metrics
        assert "images/grad_norm" not in metrics
        assert list(trainer.backends()) == ["policy"]
        trainer.save(str(tmp_path))
        assert [path.name for path in tmp_path.iterdir()] == ["policy"]
    finally:
        trainer.close()
