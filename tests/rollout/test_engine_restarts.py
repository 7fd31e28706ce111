"""An engine that dies or stands still is started again, and the run learns what it would have."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.errors import WorkerDied
from rl_core.trainers.domains.text import TextTrainer
from tests.rollout.built import built
from tests.rollout.test_ahead import CORRECTED, EXACT, IN_FLOAT32
from tests.rollout.vowels import ITEMS, NUM_PROMPTS, VowelEnv, recipe

HUNG_AFTER_S = 20
PLACED: dict[str, Any] = {
    "num_devices": 2,
    "rollout_devices": 1,
    "threads_per_device": 1,
    "micro_batch_size": 8,
    "collective_timeout_s": HUNG_AFTER_S,
}


class Striking(VowelEnv):
    """Sends its engine's process the signal of its row, once."""

    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        super().__init__(env_config, extras)
        self.blow = (extras or {})["reward_spec"]["ground_truth"]

    def step(self, action: str) -> Any:
        if self.blow:
            name, told = self.blow.split(" ")
            if not Path(told).exists():
                Path(told).touch()
                os.kill(os.getpid(), getattr(signal, name))
        return super().step(action)


def learnt(
    model_dir: Path, *, steps_ahead: int, blow: str = "", **rollout: Any
) -> tuple[dict[str, torch.Tensor], float]:
    """Return the weights after five steps, and how often the engine was started again. Args: blow:
    signal and file of a row of each second step."""
    settings = recipe(
        model_dir,
        rollout=IN_FLOAT32 | {"steps_ahead": steps_ahead} | rollout,
        algorithm=CORRECTED,
        placement=PLACED,
        training={"steps_per_iteration": 5, "prompts_per_step": NUM_PROMPTS},
        **EXACT,
    )
    items = [
        item
        | {
            "env_class": f"{__name__}:Striking",
            "env_extras": {"reward_spec": {"ground_truth": blow if number == 5 else ""}},
        }
        for number, item in enumerate(ITEMS)
    ]
    with built(TextTrainer(settings, settings.model.path, items)) as trainer:
        steps = [trainer.step()[0] for _ in range(5)]
        restarts = sum(step.get("engine_restarts", 0.0) for step in steps)
        return trainer.backends()["policy"].full_state()[0], restarts


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("steps_ahead", "blow"),
    [(0, "SIGKILL"), (2, "SIGKILL"), pytest.param(2, "SIGSTOP", marks=pytest.mark.long)],
)
def test_a_lost_engine_costs_nothing_that_was_learnt(
    tiny_model_dir: Path, tmp_path: Path, steps_ahead: int, blow: str
):
    whole, _ = learnt(tiny_model_dir, steps_ahead=steps_ahead)
    struck, restarts = learnt(
        tiny_model_dir, steps_ahead=steps_ahead, blow=f"{blow} {tmp_path / 'struck'}"
    )
    assert restarts == 1
    assert all(torch.equal(weight, struck[name]) for name, weight in whole.items())


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_without_restarts_a_lost_engine_ends_the_step(tiny_model_dir: Path, tmp_path: Path):
    with pytest.raises(WorkerDied):
        learnt(
            tiny_model_dir,
            steps_ahead=2,
            blow=f"SIGKILL {tmp_path / 'struck'}",
            engine_restarts=0,
        )
