"""Offloading gives the memory back to the system, measured from outside, and changes no bit of
training."""

from pathlib import Path

import psutil
import pytest
import torch

from rl_core.algorithms import algorithms
from rl_core.data_proto import DataProto
from rl_core.distributed import Block, DevicePool, Remote, placement, remote
from rl_core.errors import RLTrainError
from rl_core.models.bundle import ModelBundle
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.sharding.offload import Parked
from rl_core.train.stacks.token_stack import TrainStack
from schemas.recipe import (
    EmaFullConfig,
    FSDPConfig,
    LrSchedulerConfig,
    ModelConfig,
    OptimizerConfig,
)


@pytest.fixture(scope="module")
def larger_model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve million parameters, 48 MB, so that what is freed stands out from what a process holds
    anyway."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("larger-model")
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(folder)
    values = LlamaConfig.from_pretrained(tiny_model_dir).to_dict()
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4, "head_dim": 128}
    LlamaForCausalLM(LlamaConfig.from_dict(values | sizes)).save_pretrained(folder)
    return folder


def start(model_dir: Path) -> tuple[Block, Remote, Remote]:
    algorithm_cls, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    with placement(DevicePool(1, threads_per_device=1)) as block:
        backend = remote(
            FSDPBackend,
            remote(ModelBundle, str(model_dir), ModelConfig(path=str(model_dir))),
            FSDPConfig.model_validate({"param_dtype": "float32"}),
            OptimizerConfig(),
            LrSchedulerConfig(),
            None,
            total_steps=2,
            seed=0,
            with_reference=False,
            ema_cfg=EmaFullConfig(),
        )
        stack = remote(TrainStack, backend, remote(algorithm_cls, config), micro_batch_size=2)
    return block, backend, stack


def batch() -> DataProto:
    generator = torch.Generator().manual_seed(0)
    mask, attention = torch.ones(2, 3).long(), torch.ones(2, 6).long()
    return DataProto.from_dict(
        {
            "input_ids": torch.randint(3, 20, (2, 6), generator=generator),
            "attention_mask": attention,
            "position_ids": attention.cumsum(-1) - 1,
            "response_mask": mask,
            "rollout_log_probs": torch.full((2, 3), -3.0),
            "advantages": torch.randn(2, 3, generator=generator),
        }
    )


def rss_bytes(block: Block) -> int:
    return psutil.Process(block.pids()[0]).memory_info().rss


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_offload_frees_memory_and_onload_brings_back_every_bit(larger_model_dir: Path) -> None:
    block, backend, stack = start(larger_model_dir)
    try:
        stack.train(batch())
        before = rss_bytes(block)
        [given_back] = backend.offload()
        offloaded = rss_bytes(block)
        # Weights, average and Adam's two moments.
        num_bytes = 4 * sum(value.nbytes for value in _weights(larger_model_dir).values())
        assert given_back == pytest.approx(num_bytes, rel=0.02)
        assert before - offloaded > 0.9 * given_back
        assert backend.offload() == [0]
        for refused in (
            lambda: stack.train(batch()),
            backend.full_state,
            lambda: backend.save("nowhere"),
        ):
            with pytest.raises(RLTrainError, match="offloaded; call onload"):
                refused()
        backend.onload()
        backend.onload()
        assert rss_bytes(block) - offloaded > 0.9 * given_back
        stack.train(batch())
        after = backend.full_state()[0]
    finally:
        block.close()
    assert_undisturbed(larger_model_dir, after)


def assert_undisturbed(model_dir: Path, after: dict[str, torch.Tensor]) -> None:
    block, backend, stack = start(model_dir)
    try:
        for _ in range(2):
            stack.train(batch())
        undisturbed = backend.full_state()[0]
    finally:
        block.close()
    assert after.keys() == undisturbed.keys()
    assert all(torch.equal(after[name], value) for name, value in undisturbed.items())
    assert any(
        not torch.equal(value, undisturbed[f"model.{name}"])
        for name, value in _weights(model_dir).items()
    )


def _weights(model_dir: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(model_dir / "model.safetensors")


def test_views_of_one_storage_are_parked_once_and_keep_their_contents():
    whole = torch.arange(1000.0)
    views = [whole, whole[:10], whole.view(10, 100)]
    parked = Parked(views, torch.device("cpu"))
    assert (parked.num_bytes, whole.untyped_storage().nbytes()) == (4000, 0)
    parked.restore()
    assert torch.equal(views[2].flatten(), torch.arange(1000.0))
