"""Training on games of several seats, by the real trainer on a tiny model."""

from pathlib import Path

import pytest
import torch

from rl_core.trainers.domains.text import TextTrainer
from tests.rollout.built import built
from tests.rollout.vowels import ITEMS, recipe

pytestmark = pytest.mark.usefixtures("ray_cluster")


def test_a_step_trains_the_rows_of_each_seat_of_the_policy(tiny_model_dir: Path) -> None:
    game = {
        "agent": "tests.rollout.agents.players:by_vowels",
        "seats": {"x": "policy", "o": "policy", "other": "start"},
        "evaluation_seats": {"o": "start"},
    }
    settings = recipe(tiny_model_dir, dedicated=False, environments={"game": game})
    rows = [item | {"env_class": "game"} for item in ITEMS]
    with built(TextTrainer(settings, str(tiny_model_dir), rows)) as trainer:
        (backend,) = trainer.backends().values()
        before = backend.full_state()[0]
        metrics, rollout = trainer.step()
        after = backend.full_state()[0]
    (batch,) = rollout.values() if isinstance(rollout, dict) else (rollout,)
    groups = batch.non_tensor_batch["group_id"].tolist()
    assert {group.rpartition("/")[2] for group in groups} == {"x", "o"}
    assert len(groups) == 4 * 4 * 2
    assert metrics["env/game/reward_x"] != metrics["env/game/reward_o"]
    assert any(not torch.equal(before[name], value) for name, value in after.items())
