"""A whole training job with router replay: an engine with older weights sends tokens to other
experts than the trainer would."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.models.decoding.routing import ROUTING
from rl_core.trainers.domains.text import TextTrainer
from schemas.recipe import Recipe
from tests.train.parallel import copy_of

NUM_STEPS, NUM_PROMPTS, NUM_SIBLINGS = 3, 4, 2


class ShoutEnv(BaseTextEnv):
    """Pays for the share of lower-case letters."""

    def __init__(
        self, env_config: dict[str, Any] | None = None, extras: dict[str, Any] | None = None
    ) -> None:
        super().__init__()

    def step(self, action: str) -> BaseTextEnvStepOutput:
        reward = sum(letter.islower() for letter in action) / max(1, len(action))
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})


@pytest.fixture(scope="module")
def undecided(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3-MoE whose routers find all experts nearly equal."""
    folder = copy_of(
        tiny_model_dir,
        tmp_path_factory.mktemp("undecided"),
        "qwen3_moe",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=12,
        num_key_value_heads=2,
        norm_topk_prob=True,
        initializer_range=0.3,
    )
    model = AutoModelForCausalLM.from_pretrained(folder)
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if name.endswith(".gate.weight"):
            weight.data.fill_(0.01)
            weight.data += 1e-5 * torch.rand(weight.shape, generator=generator)
    model.save_pretrained(folder)
    return folder


def run(folder: Path, router_replay: bool, **placement: int) -> list[dict[str, float]]:
    """Train, and return the metrics of each step."""
    engine: dict[str, Any] = {}
    if "rollout_devices" in placement:
        engine = {"engine": "dedicated", "steps_ahead": 1, "sync": {"dtype": "float32"}}
    recipe = Recipe.model_validate(
        {
            "name": "experts",
            "model": {"path": str(folder)},
            "fsdp": {"param_dtype": "float32"},
            # A step changes which experts are the best, and little else.
            "optimizer": {"learning_rate": 1e-5},
            "algorithm": {"name": "grpo", "correction": {"level": "token", "upper": 2.0}},
            "data": {"train": ["unused"], "eval": ["unused"]},
            "rollout": {
                "samples_per_prompt": NUM_SIBLINGS,
                "max_new_tokens": 6,
                "router_replay": router_replay,
                "max_delta_log_prob": 100,
                **engine,
            },
            "training": {
                "num_iterations": 1,
                "steps_per_iteration": NUM_STEPS,
                "prompts_per_step": NUM_PROMPTS,
            },
            "placement": {
                "threads_per_device": 1,
                "max_tokens_per_micro_batch": 200,
                **placement,
            },
        }
    )
    trainer = TextTrainer(recipe, str(folder), items())
    try:
        trainer.build()
        metrics = []
        for _ in range(NUM_STEPS):
            measured, rollout = trainer.step()
            metrics.append(measured)
            assert (ROUTING in rollout.non_tensor_batch) is router_replay
        trainer.evaluate(items()[:2], max_new_tokens=4)
        return metrics
    finally:
        trainer.close()


def items() -> list[Any]:
    return [
        {
            "uid": f"row-{row}",
            "prompt": [{"role": "user", "content": f"write {row * 7}"}],
            "env_class": "tests.trainers.test_router_replay:ShoutEnv",
            "env_extras": {"reward_spec": {"ground_truth": ""}},
        }
        for row in range(NUM_PROMPTS * NUM_STEPS)
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_recipe_with_replay_trains_by_the_experts_of_its_engine(undecided: Path) -> None:
    beside = {"num_devices": 2, "rollout_devices": 1}
    own, replayed = run(undecided, False, **beside), run(undecided, True, **beside)
    name = "delta_log_prob_mean"
    assert [step["staleness_max"] for step in replayed] == [0.0, 1.0, 1.0]
    # The first step is sampled with the trainer's own weights.
    assert own[0][name] < 1e-3 and replayed[0][name] < 1e-3
    for without, with_replay in zip(own[1:], replayed[1:], strict=True):
        assert without[name] > 0.1
        assert with_replay[name] < 0.02
        assert with_replay["grad_norm"] > 1e-3


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_workers_that_share_experts_replay_what_they_sampled(undecided: Path) -> None:
    for step in run(undecided, True, num_devices=2, ep_size=2):
        assert step["delta_log_prob_mean"] < 1e-4
        assert step["grad_norm"] > 1e-3
