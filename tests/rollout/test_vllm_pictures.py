"""Pictures with the vLLM engine, for real on a CPU: prompts of none, of one and of two, and
observations that show more, before and after the vision tower was trained."""

from __future__ import annotations

import base64
import random
from pathlib import Path
from typing import Any

import pytest

from rl_core.builtin.data.pictures import Scene, draw
from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.trainers.domains.vision import VisionTrainer
from schemas.recipe import Recipe
from tests.rollout.built import built
from tests.rollout.vllm_parts import ON_VLLM, TOLERANCE

pytestmark = ON_VLLM

NUM_STEPS, NUM_PROMPTS = 3, 3


def picture(number: int) -> str:
    """A drawn picture, as a row has it."""
    png = draw(random.Random(number), Scene.NUMBER).png
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


class LookAgainEnv(BaseTextEnv):
    """Shows another picture after the first reply; the second is rewarded by its length."""

    def __init__(
        self, env_config: dict[str, Any] | None = None, extras: dict[str, Any] | None = None
    ) -> None:
        super().__init__()

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        if self.turns == 2:
            reward = float(len(action) % 3)
            return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})
        parts: list[dict[str, Any]] = [
            {"type": "image_url", "image_url": {"url": picture(len(action))}},
            {"type": "text", "text": "What number is written?"},
        ]
        shown: Any = [{"role": "user", "content": parts}]
        return BaseTextEnvStepOutput(observations=shown, reward=0.0, done=False, metadata={})


ITEMS = [
    {
        "uid": f"row-{count}",
        "prompt": [{"role": "user", "content": "<image>" * count + "How many circles?"}],
        "env_extras": {
            "reward_spec": {"ground_truth": ""},
            "images": [picture(number) for number in range(count)],
        },
    }
    for count in range(NUM_PROMPTS)
]


def recipe(folder: Path, **rollout: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "look-again",
            "domain": "vision",
            "model": {"path": str(folder), "frozen": []},
            "fsdp": {"param_dtype": "float32"},
            "optimizer": {"learning_rate": 1e-2},
            "data": {"train": ["unused"], "eval": ["unused"]},
            "environments": {"look_twice": {"agent": "tests.e2e.picture_agent:look_twice"}},
            "rollout": {
                "engine": "vllm",
                "samples_per_prompt": 4,
                "max_new_tokens": 6,
                "max_context_length": 256,
                "sync": {"dtype": "float32"},
                "vllm": {"kv_cache_gib": 0.125},
            }
            | rollout,
            "training": {
                "num_iterations": 1,
                "steps_per_iteration": NUM_STEPS,
                "prompts_per_step": NUM_PROMPTS,
            },
            "placement": {"num_devices": 2, "rollout_devices": 1, "threads_per_device": 1},
        }
    )


@pytest.mark.parametrize(
    ("env_class", "continuous"),
    [(f"{__name__}:LookAgainEnv", False), ("look_twice", True)],
    ids=["observations", "an agent's, one by one"],
)
def test_the_trainer_has_the_log_probabilities_that_vllm_sampled(
    ray_cluster: None, tiny_vlm_dir: Path, env_class: str, continuous: bool
):
    settings = recipe(tiny_vlm_dir, episodes={"continuous": continuous})
    items: Any = [item | {"env_class": env_class} for item in ITEMS]
    with built(VisionTrainer(settings, str(tiny_vlm_dir), items)) as trainer:
        for _ in range(NUM_STEPS):
            # The same pictures every step, seen by another tower.
            metrics, _ = trainer.step()
            assert metrics["grad_norm"] > 0
            assert 0.0 < metrics["delta_log_prob_max"] < TOLERANCE
