"""A rank that shares its weights with nobody learns, bit by bit, what FSDP2's way over copies would
have taught it."""

import gc
from pathlib import Path
from typing import Any
from unittest import mock
from weakref import ref

import pytest
from torch import Tensor
from torch.distributed.tensor import DTensor

from rl_core.models.causal_lm import blocks
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.sharding import single_rank
from schemas.recipe import LoraConfig
from tests.train.jobs import LORA, Setup, batch, largest_difference, make_both, shard_of, train
from tests.train.ranks import Ranks

STEPS = [0, 1, 2]


def train_over_copies(rank_info: RankInfo, setup: Setup, steps: list[int]) -> Any:
    """`train`, with gradients that go through FSDP2's reduction."""
    with mock.patch.object(single_rank, "add_gradients_in_place"):
        return train(rank_info, setup, steps)


@pytest.mark.parametrize("lora", [None, LORA], ids=["weights", "lora"])
@pytest.mark.parametrize(
    "fsdp",
    [{}, {"param_dtype": "bfloat16"}, {"param_dtype": "bfloat16", "reduce_dtype": "bfloat16"}],
    ids=["float32", "bfloat16", "bfloat16 gradients"],
)
def test_gradients_added_in_place_are_those_of_the_reduction(
    ranks: Ranks, tiny_model_dir: Path, fsdp: dict[str, Any], lora: LoraConfig | None
) -> None:
    setup = Setup(str(tiny_model_dir), fsdp=fsdp, lora=lora)
    expected, expected_results = ranks.run(1, train_over_copies, setup, STEPS)[0]
    got, got_results = ranks.run(1, train, setup, STEPS)[0]
    assert largest_difference(expected, got) == 0
    assert [one.grad_norm for one in got_results] == [one.grad_norm for one in expected_results]


def outlives_its_owner(rank_info: RankInfo, setup: Setup) -> bool:
    """Whether the model of a backend that was trained, and that nobody holds any more, is still
    there."""
    backend, stack = make_both(rank_info, setup)
    stack.train(shard_of(rank_info, batch(0)))
    policy = ref(backend.policy)
    del backend, stack
    gc.collect()
    return policy() is not None


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_model_that_nobody_holds_is_gone(
    ranks: Ranks, tiny_model_dir: Path, num_ranks: int
) -> None:
    assert (
        ranks.run(num_ranks, outlives_its_owner, Setup(str(tiny_model_dir))) == [False] * num_ranks
    )


def what_is_gathered(rank_info: RankInfo, setup: Setup) -> list[bool]:
    """Whether a block's weights are whole after each of two backward passes, and after the step."""
    backend, _ = make_both(rank_info, setup)
    rows = shard_of(rank_info, batch(0))
    block: Any = blocks(backend.policy)[0]
    found: list[Tensor] = []
    for last in (False, True):
        log_probs = backend.policy(
            *(
                rows.tensor(name)
                for name in ("input_ids", "attention_mask", "position_ids", "response_mask")
            )
        )[0]
        backend.backward(log_probs.sum() / 100, last=last)
        found.append(block.mlp.up_proj.weight)
    backend.optimizer_step(1.0)
    return [not isinstance(weight, DTensor) for weight in (*found, block.mlp.up_proj.weight)]


@pytest.mark.parametrize(
    ("reshard", "expected"), [(None, [True, False, False]), (True, [False, False, False])]
)
def test_weights_are_gathered_once_per_step_unless_memory_is_wanted(
    ranks: Ranks, tiny_model_dir: Path, reshard: bool | None, expected: list[bool]
) -> None:
    setup = Setup(str(tiny_model_dir), fsdp={"reshard_after_forward": reshard})
    assert ranks.run(1, what_is_gathered, setup)[0] == expected


def what_is_trained(rank_info: RankInfo, setup: Setup) -> list[bool]:
    """Whether each adapter's shard takes gradients after the reference was asked."""
    backend, _ = make_both(rank_info, setup)
    rows = shard_of(rank_info, batch(0))
    names = ("input_ids", "attention_mask", "position_ids", "response_mask")
    with backend.reference_policy() as reference:
        reference(*(rows.tensor(name) for name in names))
    backend.policy(*(rows.tensor(name) for name in names))[0].sum().backward()
    return [value.requires_grad and value.grad is not None for value in backend.trainable.values()]


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_reference_leaves_adapters_to_be_trained(
    ranks: Ranks, tiny_model_dir: Path, world_size: int
) -> None:
    setup = Setup(str(tiny_model_dir), fsdp={"fsdp_mode": "grad_op"}, lora=LORA)
    for trained in ranks.run(world_size, what_is_trained, setup):
        assert trained
        assert all(trained)
