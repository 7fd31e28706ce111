"""A whole training job: workers that share weights or sequences learn what workers that share
nothing learn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.trainers.domains.text import TextTrainer
from schemas.recipe import Recipe
from tests.train.parallel import copy_of

NUM_STEPS, NUM_PROMPTS, NUM_SIBLINGS, NUM_TURNS = 2, 4, 2, 2


class LettersEnv(BaseTextEnv):
    """Two turns; pays for the share of lower-case letters, and notes every turn that it is asked to
    judge."""

    def __init__(
        self, env_config: dict[str, Any] | None = None, extras: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.notes = Path((extras or {})["extra_info"]["notes"])

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        with self.notes.open("a", encoding="utf-8") as notes:
            notes.write("turn\n")
        reward = sum(letter.islower() for letter in action) / max(1, len(action))
        done = self.turns == NUM_TURNS
        heard = [] if done else [{"role": "user", "content": f"{self.turns}"}]
        return BaseTextEnvStepOutput(observations=heard, reward=reward, done=done, metadata={})


@dataclass
class Outcome:
    """What a job learnt and said."""

    weights: dict[str, Tensor]
    metrics: list[dict[str, float]]
    responses: list[str]
    greedy: list[str]
    num_turns_judged: int


def items(notes: Path) -> list[dict[str, Any]]:
    return [
        {
            "uid": f"row-{row}",
            "prompt": [{"role": "user", "content": f"write {row * 7}"}],
            "env_class": "tests.trainers.test_text_parallel:LettersEnv",
            "env_extras": {
                "reward_spec": {"ground_truth": ""},
                "extra_info": {"notes": str(notes)},
            },
        }
        for row in range(NUM_PROMPTS * NUM_STEPS)
    ]


def run(model_dir: Path, notes: Path, num_devices: int, **placement: int) -> Outcome:
    recipe = Recipe.model_validate(
        {
            "name": "letters",
            "model": {"path": str(model_dir)},
            "fsdp": {"param_dtype": "float32"},
            "optimizer": {"learning_rate": 1e-3, "eps": 1e-4},
            "data": {"train": ["unused"], "eval": ["unused"]},
            "rollout": {"samples_per_prompt": NUM_SIBLINGS, "max_new_tokens": 6},
            "training": {
                "num_iterations": 1,
                "steps_per_iteration": NUM_STEPS,
                "prompts_per_step": NUM_PROMPTS,
            },
            "placement": {
                "num_devices": num_devices,
                "threads_per_device": 1,
                "micro_batch_size": 2,
            }
            | placement,
        }
    )
    rows = items(notes)
    trainer = TextTrainer(recipe, str(model_dir), rows)
    try:
        trainer.build()
        metrics, responses = [], []
        for _ in range(NUM_STEPS):
            measured, rollout = trainer.step()
            metrics.append(measured)
            responses += list(rollout.non_tensor_batch["response"])
        judged = len(notes.read_text(encoding="utf-8").splitlines())
        greedy = list(trainer.evaluate(rows[:3], max_new_tokens=4).non_tensor_batch["response"])
        return Outcome(
            trainer.backends()["policy"].full_state()[0], metrics, responses, greedy, judged
        )
    finally:
        trainer.close()


def assert_same(one: Outcome, other: Outcome) -> None:
    assert one.responses == other.responses
    assert one.greedy == other.greedy
    assert one.weights.keys() == other.weights.keys()
    for name, weight in one.weights.items():
        torch.testing.assert_close(
            weight, other.weights[name], atol=1e-5, rtol=0, msg=lambda text, n=name: f"{n}: {text}"
        )
    for mine, theirs in zip(one.metrics, other.metrics, strict=True):
        for name in (
            "loss",
            "grad_norm",
            "reward_mean",
            "response_length_mean",
            "delta_log_prob_mean",
        ):
            assert mine[name] == pytest.approx(theirs[name], abs=1e-5), name


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("shared", "apart"),
    [
        pytest.param({"num_devices": 2, "tp_size": 2}, {"num_devices": 1}, marks=pytest.mark.long),
        pytest.param({"num_devices": 2, "sp_size": 2}, {"num_devices": 2}, marks=pytest.mark.long),
        ({"num_devices": 4, "tp_size": 2, "sp_size": 2}, {"num_devices": 2}),
    ],
    ids=["weights", "sequences", "both"],
)
def test_workers_that_share_learn_what_workers_apart_learn(
    tiny_model_dir: Path, tmp_path: Path, shared: dict[str, int], apart: dict[str, int]
) -> None:
    # Sequence-parallel workers sample with streams of their own, as two replicas do;
    # tensor-parallel ones with one.
    one = run(tiny_model_dir, tmp_path / "apart", **apart)
    other = run(tiny_model_dir, tmp_path / "shared", **shared)
    assert_same(one, other)
    assert one.metrics[0]["grad_norm"] > 1e-3
    assert len(one.responses) == NUM_STEPS * NUM_PROMPTS * NUM_SIBLINGS
    assert one.num_turns_judged == other.num_turns_judged == len(one.responses) * NUM_TURNS


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_workers_that_share_experts_learn_what_whole_replicas_learn(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    shape = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
    folder = copy_of(
        tiny_model_dir, tmp_path / "mixture", "qwen3_moe", num_key_value_heads=2, **shape
    )
    one = run(folder, tmp_path / "apart", num_devices=2)
    other = run(folder, tmp_path / "shared", num_devices=2, ep_size=2)
    assert_same(one, other)
    assert one.metrics[0]["grad_norm"] > 1e-3
