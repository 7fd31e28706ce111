"""Training on a GPU, by FSDP2 over NCCL: the processor's numbers, kept and brought back bit by
bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rl_core.ranks.rank_info import RankInfo
from schemas.recipe import LoraConfig
from tests.train.jobs import (
    LORA,
    Setup,
    batch,
    largest_difference,
    log_probs,
    make_both,
    same_bits,
    train,
)
from tests.train.test_resume import KINDS, second_half, setup_of, straight

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]

GPU, CPU = (RankInfo(0, 1, kind, 1) for kind in ("cuda", "cpu"))
PASSES: dict[str, dict[str, Any]] = {
    "padded": {},
    "packed": {"max_tokens_per_micro_batch": 24},
    "shared prompts": {"share_prompts": True},
}


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One rank with a process group for each kind of device."""
    store = dist.FileStore(str(tmp_path_factory.mktemp("meeting") / "store"), 1)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("passes", PASSES)
@pytest.mark.parametrize("lora", [None, LORA])
def test_training_gives_the_weights_that_it_gives_on_a_processor(
    tiny_model_dir: Path, lora: LoraConfig | None, passes: str
):
    setup = Setup(str(tiny_model_dir), lora=lora, stack=PASSES[passes])
    (there, told), (here, expected) = (train(info, setup, [0, 1, 2]) for info in (GPU, CPU))
    assert largest_difference(there, here) < 1e-5
    assert [one.grad_norm for one in told] == pytest.approx(
        [one.grad_norm for one in expected], rel=1e-3
    )
    assert told[0].grad_norm > 0


@pytest.mark.parametrize("passes", PASSES)
def test_in_bfloat16_it_learns_nearly_the_same(tiny_model_dir: Path, passes: str):
    setup = Setup(str(tiny_model_dir), fsdp={"param_dtype": "bfloat16"}, stack=PASSES[passes])
    (_, told), (_, expected) = (
        train(GPU, one, [0, 1]) for one in (setup, Setup(str(tiny_model_dir), stack=PASSES[passes]))
    )
    assert [one.grad_norm for one in told] == pytest.approx(
        [one.grad_norm for one in expected], rel=0.05
    )


@pytest.mark.parametrize("kind", KINDS)
def test_steps_after_a_checkpoint_are_those_without_one(
    tiny_model_dir: Path, kind: str, tmp_path: Path
):
    setup = setup_of(tiny_model_dir, kind)
    expected = straight(GPU, setup)
    straight(GPU, setup, str(tmp_path))
    resumed = second_half(GPU, setup, str(tmp_path))
    assert same_bits(resumed["weights"], expected["weights"])
    assert resumed["figures"] == expected["figures"]


def test_offloading_gives_the_gpu_back_and_changes_nothing(tiny_model_dir: Path):
    backend, stack = make_both(GPU, Setup(str(tiny_model_dir)))
    stack.train(batch(0))
    before, held = log_probs(backend.policy, batch(1).to("cuda")), torch.cuda.memory_allocated()
    given_back = backend.offload()
    assert given_back > 0 and held - torch.cuda.memory_allocated() >= given_back
    backend.onload()
    assert torch.equal(log_probs(backend.policy, batch(1).to("cuda")), before)
