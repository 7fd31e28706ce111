"""A run whose engine takes weights in flight, trained again by `reproduce`: the order is kept with
the version, and followed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_core.runs.run_folder import ORDERS_FILE
from tests.command import rl_train
from tests.e2e.conftest import Run
from tests.e2e.outcomes import run_folder

pytestmark = [pytest.mark.slow, pytest.mark.long]

IN_FLIGHT = (
    "placement={num_devices: 2, rollout_devices: 1, threads_per_device: 1, micro_batch_size: 16}",
    "rollout.engine=dedicated",
    "rollout.steps_ahead=2",
    "rollout.in_flight=true",
    "rollout.max_new_tokens=48",
    "algorithm={name: grpo, correction: {level: token, upper: 2.0}}",
)


def test_a_version_that_took_weights_in_flight_is_trained_again_bit_for_bit(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    run = start(tiny_recipe, home, *IN_FLIGHT)
    assert run.finish() == 0, run.output
    written = (run_folder(home) / ORDERS_FILE).read_text()
    noted = [json.loads(line) for line in written.splitlines() if line]
    assert any(taken for one in noted for rank in one["ranks"].values() for taken in rank)

    again = rl_train(home, "reproduce", "rl-train-tiny", "1", "--to", str(tmp_path / "b"), "--run")
    assert again.returncode == 0, again.stdout + again.stderr
    assert "the weights are the same, bit for bit" in again.stdout
    assert (run_folder(tmp_path / "b" / "home") / ORDERS_FILE).read_text() == written
