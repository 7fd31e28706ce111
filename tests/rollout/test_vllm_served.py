"""A vLLM server that somebody else started, for real on a CPU."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rl_core.distributed.isolated_actor import PROJECT
from rl_core.rollout.vllm_process.worker_extension import CpuReload
from rl_core.services.ports import free_port
from rl_core.trainers.domains.text import TextTrainer
from tests.rollout.in_flight_parts import CHANGES, ROLLOUT, check_in_flight
from tests.rollout.server_parts import check_steps, server_recipe
from tests.rollout.vllm_parts import CONTEXT, INTERPRETER, ON_VLLM, make_model

pytestmark = ON_VLLM


@pytest.fixture(scope="module")
def model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tiny_model_dir, tmp_path_factory.mktemp("served") / "model")


@pytest.fixture(scope="module")
def url(model_dir: Path) -> Iterator[str]:
    port = free_port("127.0.0.1")
    command = [str(INTERPRETER), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model_dir), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--dtype", "float32", "--max-model-len", str(CONTEXT), "--enforce-eager"]
    command += ["--logprobs-mode", "processed_logprobs", "--generation-config", "vllm"]
    command += ["--worker-extension-cls", f"{CpuReload.__module__}.{CpuReload.__qualname__}"]
    settings = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    address = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        command, env=os.environ | settings | {"PYTHONPATH": str(PROJECT)}
    ) as process:
        try:
            for _ in range(1200):
                assert process.poll() is None, "the server ended"
                try:
                    httpx.get(f"{address}/v1/models", trust_env=False)
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            yield address
        finally:
            process.terminate()


def test_each_step_samples_with_the_weights_of_the_one_before(
    url: str, model_dir: Path, tmp_path: Path
):
    check_steps(server_recipe(model_dir, given(url, tmp_path)), 2)


def test_replies_go_on_with_newer_weights(url: str, model_dir: Path, tmp_path: Path):
    settings = server_recipe(model_dir, given(url, tmp_path), changes=CHANGES, **ROLLOUT)
    check_in_flight(TextTrainer, settings, tmp_path)


def given(url: str, folder: Path) -> dict[str, Any]:
    return {"urls": [url], "folder": str(folder / "weights"), "reload": "reload_on_cpu"}
