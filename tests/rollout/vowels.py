"""A tiny text job whose rewards any policy can learn, with an engine beside training or among
it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput
from schemas.recipe import Recipe

NUM_STEPS, NUM_PROMPTS, NUM_SIBLINGS = 3, 4, 4
DEDICATED: dict[str, Any] = {"placement": {"num_devices": 2, "rollout_devices": 1}}


class VowelEnv(BaseTextEnv):
    """Pays for the share of vowels."""

    def __init__(
        self, env_config: dict[str, Any] | None = None, extras: dict[str, Any] | None = None
    ) -> None:
        super().__init__()

    def step(self, action: str) -> BaseTextEnvStepOutput:
        reward = (
            sum(letter in "aeiouAEIOU" for letter in action) / max(1, len(action))
            + action.count("7") / 8
        )
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})


ITEMS = [
    {
        "uid": f"row-{row}",
        "prompt": [{"role": "user", "content": f"say {row * 7}"}],
        "env_class": "tests.rollout.vowels:VowelEnv",
        "env_extras": {"reward_spec": {"ground_truth": ""}},
    }
    for row in range(NUM_PROMPTS * 2)
]


def recipe(model_dir: Path, *, dedicated: bool = True, **changes: Any) -> Recipe:
    rollout = {"samples_per_prompt": NUM_SIBLINGS, "max_new_tokens": 8} | changes.pop("rollout", {})
    placement = {"num_devices": 1, "threads_per_device": 1, "micro_batch_size": 8}
    return Recipe.model_validate(
        {
            "name": "vowels",
            "model": {"path": str(model_dir)},
            "optimizer": {"learning_rate": 2e-2, "eps": 1e-4},
            "data": {"train": ["unused"], "eval": ["unused"]},
            "rollout": rollout | ({"engine": "dedicated"} if dedicated else {}),
            "training": {
                "num_iterations": 1,
                "steps_per_iteration": NUM_STEPS,
                "prompts_per_step": NUM_PROMPTS,
            },
            "placement": placement | (DEDICATED["placement"] if dedicated else {}),
        }
        | changes
    )
