"""vLLM on the devices that train: adapters arrive merged, and what happens to a server is said."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_core.errors import WorkerDied
from tests.processes import still_running
from tests.rollout.built import engine_of
from tests.rollout.vllm_parts import (
    ON_VLLM,
    TOLERANCE,
    agree,
    make_model,
    recipe,
    running,
)

pytestmark = ON_VLLM

SHARED: dict[str, Any] = {
    # Both devices train and sample; the adapters of the two trained shards arrive merged.
    "placement": {
        "num_devices": 2,
        "workers_per_device": 2,
        "threads_per_device": 2,
        "micro_batch_size": 8,
    },
    "lora": {"rank": 4, "alpha": 8},
}


def test_a_dead_server_is_replaced_once_then_named_and_the_others_end_with_the_job(
    tiny_model_dir: Path, tmp_path: Path
):
    folder = make_model(tiny_model_dir, tmp_path / "model")
    with running(recipe(folder, restarts=1, **SHARED)) as trainer:
        assert len(set(trainer.pids())) == 4
        assert trainer.step()[0]["delta_log_prob_max"] < TOLERANCE
        agree(trainer)
        first = [psutil.Process(pid) for pid in engine_of(trainer).server_pid()]
        os.kill(first[1].pid, signal.SIGKILL)
        replaced = trainer.step()[0]
        assert replaced["engine_restarts"] == 1 and replaced["delta_log_prob_max"] < TOLERANCE
        agree(trainer)
        servers = [psutil.Process(pid) for pid in engine_of(trainer).server_pid()]
        os.kill(servers[1].pid, signal.SIGKILL)
        with pytest.raises(
            WorkerDied, match=rf"VllmServer of rollout engine rank 1 \(\w+, pid {servers[1].pid}\)"
        ):
            trainer.step()
    assert not still_running(first + servers, 60), "a server outlived its job"
