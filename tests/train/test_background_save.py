"""What is written while training goes on is the state at the time of the call, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rl_core.trainers.domains.text import TextTrainer
from tests.rollout.built import built
from tests.rollout.vowels import ITEMS, recipe


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_step_meanwhile_changes_nothing_that_is_written(
    tiny_model_dir: Path, tmp_path: Path, num_devices: int
):
    placement = {"num_devices": num_devices, "threads_per_device": 1, "micro_batch_size": 8}
    settings = recipe(tiny_model_dir, dedicated=False, placement=placement)
    with built(TextTrainer(settings, settings.model.path, ITEMS)) as trainer:
        backend = trainer.backends()["policy"]
        trainer.step()
        backend.save(str(tmp_path / "at once"))
        before = backend.full_state()[0]
        backend.save_in_background(str(tmp_path / "meanwhile"))
        trainer.step()
        assert backend.is_saved(wait=True) == [True] * num_devices
        after = backend.full_state()[0]
        assert not all(torch.equal(weight, after[name]) for name, weight in before.items())
        for folder in ("at once", "meanwhile"):
            backend.load(str(tmp_path / folder))
            restored = backend.full_state()[0]
            assert all(torch.equal(weight, restored[name]) for name, weight in before.items())
    names = {path.name for path in (tmp_path / "at once").rglob("*")}
    assert names == {path.name for path in (tmp_path / "meanwhile").rglob("*")}
