"""A step of the text trainer with rewards that are known: the advantages of each prompt, worked out
by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.trainers.domains.text import TextTrainer
from tests.rollout.built import built
from tests.rollout.named_rows import assert_named
from tests.rollout.vowels import recipe

REWARDS = (0.0, 1.0, 2.0, 5.0)
"""Of the siblings of a prompt, whose mean is 2, times the prompt's own scale."""
SCALES = (1.0, 10.0, 100.0, 1000.0)


class KnownRewards(BaseTextEnv):
    """Pays the siblings of a prompt `REWARDS` in turn, times the scale that the row names."""

    num_made: ClassVar[Counter[float]] = Counter()

    def __init__(
        self, env_config: dict[str, Any] | None = None, extras: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        scale = (extras or {})["reward_spec"]["ground_truth"]
        self.reward = scale * REWARDS[self.num_made[scale]]
        self.num_made[scale] += 1

    def step(self, action: str) -> BaseTextEnvStepOutput:
        return BaseTextEnvStepOutput(observations=[], reward=self.reward, done=True, metadata={})


ITEMS = [
    {
        "uid": f"scale-{scale:g}",
        "prompt": [{"role": "user", "content": f"say {scale:g}"}],
        "env_class": "tests.trainers.domains.test_text:KnownRewards",
        "env_extras": {"reward_spec": {"ground_truth": scale}},
    }
    for scale in SCALES
]


@pytest.mark.usefixtures("ray_cluster")
def test_advantages_compare_the_siblings_of_one_prompt_and_no_others(tiny_model_dir: Path) -> None:
    training = {"num_iterations": 1, "steps_per_iteration": 1, "prompts_per_step": len(SCALES)}
    settings = recipe(
        tiny_model_dir, dedicated=False, algorithm={"name": "dr_grpo"}, training=training
    )
    with built(TextTrainer(settings, settings.model.path, ITEMS)) as trainer:
        metrics, rollout = trainer.step()
    assert_named(rollout)
    mask_BT, advantages_BT = rollout.tensor("response_mask"), rollout.tensor("advantages")
    found: dict[str, list[float]] = {item["uid"]: [] for item in ITEMS}
    for uid, mask_T, advantages_T in zip(
        rollout.non_tensor_batch["uid"], mask_BT.bool(), advantages_BT, strict=True
    ):
        (advantage,) = set(advantages_T[mask_T].tolist())
        found[uid].append(advantage)
        assert advantages_T[~mask_T].count_nonzero() == 0
    by_hand = torch.tensor(REWARDS) - 2.0
    assert {uid: sorted(values) for uid, values in found.items()} == {
        f"scale-{scale:g}": (scale * by_hand).tolist() for scale in SCALES
    }
    assert metrics["reward_mean"] == pytest.approx(2.0 * sum(SCALES) / len(SCALES))
    assert metrics["zero_advantage_share"] == pytest.approx(1 / 4), (
        "the sibling with the mean reward"
    )
