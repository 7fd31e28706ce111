"""A dedicated engine of a diffusion model: sent the trainer's weights, it samples what the trainer
would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.errors import StaleEngine
from rl_core.runs.recipes import parse_recipe
from rl_core.train.weights.buckets import WeightVersion
from rl_core.trainers.domains.diffusion import DiffusionTrainer
from rl_core.trainers.track import prompt_batch
from tests.rollout.built import engine_of
from tests.rollout.named_rows import assert_named

ITEMS = [{"uid": f"row-{row}", "prompt": f"the digit {row}", "media_refs": []} for row in range(4)]
DEDICATED = {"engine": "dedicated", "sync": {"dtype": "float32"}}
CORRECTED = {
    "name": "flow_grpo",
    "kl": {"coef": 0.0},
    "correction": {"level": "token", "upper": 2.0},
}


@contextmanager
def running(
    folder: Path, *, dedicated: bool, steps_ahead: int = 0, **changes: Any
) -> Iterator[DiffusionTrainer]:
    placed = {"num_devices": 1, "threads_per_device": 1, "micro_batch_size": 8}
    recipe = parse_recipe(
        {
            "name": "steps",
            "domain": "diffusion",
            "model": {"path": str(folder)},
            "fsdp": {"param_dtype": "float32"},
            "optimizer": {"learning_rate": 1e-3},
            "data": {
                "train": [{"digits": 8, "seed": 1}],
                "eval": [{"digits": 4, "seed": 2, "split": "eval"}],
            },
            "rewards": [{"name": "digit"}],
            "algorithm": {"name": "flow_grpo", "kl": {"coef": 0.0}},
            "diffusion": {"height": 32, "width": 32, "num_steps": 3, "eval_steps": 3},
            "rollout": {"samples_per_prompt": 4, "max_batch_size": 8}
            | (DEDICATED | {"steps_ahead": steps_ahead} if dedicated else {}),
            "training": {"num_iterations": 1, "steps_per_iteration": 2, "prompts_per_step": 2},
            "placement": placed | ({"num_devices": 2, "rollout_devices": 1} if dedicated else {}),
        }
        | changes
    )
    trainer = DiffusionTrainer(recipe, str(folder), ITEMS)
    try:
        trainer.build()
        yield trainer
    finally:
        trainer.close()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    "adapters",
    [pytest.param({}, marks=pytest.mark.long), {"lora": {"rank": 4, "alpha": 8}}],
    ids=["full", "lora"],
)
def test_a_dedicated_engine_changes_nothing(tiny_sd3_dir: Path, adapters: dict[str, Any]):
    outcomes = []
    for dedicated in (False, True):
        with running(tiny_sd3_dir, dedicated=dedicated, **adapters) as trainer:
            assert len(set(trainer.pids())) == 1 + dedicated
            outcomes.append([trainer.step()[1].fetch() for _ in range(2)])
            if dedicated:
                assert (
                    engine_of(trainer).weight_version()
                    == trainer.backends()["policy"].weight_version()
                )
                with pytest.raises(
                    StaleEngine, match="with weights 7, the rollout engine holds weights 2"
                ):
                    engine_of(trainer).rollout(prompt_batch(ITEMS[:2]), 0, WeightVersion(7))
    for beside, apart in zip(*outcomes, strict=True):
        assert_named(beside)
        assert torch.equal(beside.tensor("latents")[:, 0], apart.tensor("latents")[:, 0]), (
            "x_T differs"
        )
        for column in ("next_latents", "rollout_log_probs"):
            torch.testing.assert_close(
                beside.tensor(column), apart.tensor(column), rtol=1e-5, atol=1e-5
            )


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_it_samples_a_step_ahead_of_training(tiny_sd3_dir: Path):
    changes = {
        "algorithm": CORRECTED,
        "training": {"num_iterations": 1, "steps_per_iteration": 3, "prompts_per_step": 2},
    }
    with running(tiny_sd3_dir, dedicated=True, steps_ahead=1, **changes) as trainer:
        steps = [trainer.step()[0] for _ in range(3)]
    assert [step.get("staleness") for step in steps] == [None, 1.0, 1.0]
    # Both sides compute in float32: what is left between their log-probabilities is the step of the
    # weights.
    apart = [step["delta_log_prob_max"] for step in steps]
    assert apart[0] < 1e-4 < min(apart[1:]), apart
    assert all(abs(step["correction_weight"] - 1) > 1e-5 for step in steps[1:])
