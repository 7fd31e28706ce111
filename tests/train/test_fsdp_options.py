"""Every FSDPConfig option does what it says, and none changes what is learnt."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from rl_core.models.causal_lm import blocks
from rl_core.ranks.rank_info import RankInfo
from schemas.recipe import LoraConfig
from tests.train.jobs import (
    LORA,
    Setup,
    batch,
    largest_difference,
    log_probs,
    make_both,
    shard_of,
    train,
    train_steps,
)
from tests.train.ranks import Ranks

STEPS = [0, 1]
OPTIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "grad_op": {"fsdp_mode": "grad_op"},
    "no reshard": {"reshard_after_forward": False},
    "reshard": {"fsdp_mode": "grad_op", "reshard_after_forward": True},
    "cpu_offload": {"cpu_offload": True},
    "activation_checkpointing": {"activation_checkpointing": True},
    "defer_grad_sync": {"defer_grad_sync": True},
    "forward_prefetch": {"forward_prefetch": 1},
    "no root_wrap": {"root_wrap": False},
    "all": {
        "cpu_offload": True,
        "activation_checkpointing": True,
        "defer_grad_sync": True,
        "root_wrap": False,
    },
}
ALL_FROZEN_TOO = ("full", "cpu_offload", "all")
"""Options whose code asks whether a block has weights that are not trained."""
SHARDING_NOTHING = ("cpu_offload", "activation_checkpointing", "all")
"""Options that do something on a rank that shards nothing."""


@pytest.mark.parametrize(
    ("option", "lora", "world_size"),
    [
        *(pytest.param(option, None, 2, id=f"{option}-weights-2") for option in OPTIONS),
        *(pytest.param(option, LORA, 2, id=f"{option}-lora-2") for option in ALL_FROZEN_TOO),
        *(pytest.param(option, None, 1, id=f"{option}-weights-1") for option in SHARDING_NOTHING),
    ],
)
def test_an_option_changes_nothing_that_is_learnt(
    ranks: Ranks, tiny_model_dir: Path, option: str, lora: LoraConfig | None, world_size: int
) -> None:
    plain = Setup(str(tiny_model_dir), lora=lora)
    weights, results = ranks.once(1, train, plain, STEPS)[0]
    setup = Setup(str(tiny_model_dir), fsdp=OPTIONS[option], lora=lora)
    got_weights, got_results = ranks.run(world_size, train, setup, STEPS)[0]
    assert largest_difference(weights, got_weights) < 3e-6
    assert [result.grad_norm for result in got_results] == pytest.approx(
        [r.grad_norm for r in results], abs=1e-5
    )
    assert [result.loss for result in got_results] == pytest.approx(
        [r.loss for r in results], abs=1e-6
    )


class Reductions(TorchDispatchMode):
    """Counts the collectives that add up and share out gradients."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "reduce_scatter" in str(func)
        return func(*args, **(kwargs or {}))


def effects(rank_info: RankInfo, setup: Setup) -> dict[str, Any]:
    """What can be seen of the options in one forward and backward pass."""
    backend, _ = make_both(rank_info, setup)
    rows = shard_of(rank_info, batch(0))
    block: Any = blocks(backend.policy)[0]
    seen: dict[str, Any] = {"mlp passes": 0}

    def look(module: Any, inputs: tuple[Tensor, ...]) -> None:
        seen["mlp passes"] += 1
        seen["input dtype"], seen["weight dtype"] = inputs[0].dtype, module.weight.dtype

    block.mlp.up_proj.register_forward_pre_hook(look)
    names = ("input_ids", "attention_mask", "position_ids", "response_mask")
    with Reductions() as reductions:
        for last in (False, True):
            log_probs = backend.policy(*(rows.tensor(name) for name in names))[0]
            seen["gathered after forward"] = not isinstance(block.mlp.up_proj.weight, DTensor)
            backend.backward(log_probs.sum() / 100, last=last)
    gradient: Any = block.mlp.up_proj.weight.grad
    gradient = gradient.full_tensor()
    seen["gradient is bfloat16"] = torch.equal(gradient, gradient.bfloat16().to(gradient.dtype))
    seen["reductions"] = reductions.count
    group: Any = block._get_fsdp_state()._fsdp_param_group
    seen["offloaded"] = group.fsdp_params[0].offload_to_cpu
    seen["prefetched"] = len(block._get_fsdp_state()._states_to_forward_prefetch)
    backend.optimizer_step(1.0)
    weight = backend.trainable["model.model.layers.0.mlp.up_proj.weight"]
    seen["master dtype"] = weight.dtype
    seen["moment dtype"] = backend.optimizer.state[weight]["exp_avg"].dtype
    seen["root sharded"] = isinstance(backend.trainable["model.model.embed_tokens.weight"], DTensor)
    return seen


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (
            {},
            {
                "input dtype": torch.float32,
                "mlp passes": 2,
                "gathered after forward": False,
                "gradient is bfloat16": False,
                "offloaded": False,
                "prefetched": 0,
                "master dtype": torch.float32,
                "moment dtype": torch.float32,
                "root sharded": True,
            },
        ),
        ({"fsdp_mode": "grad_op"}, {"gathered after forward": True}),
        ({"reshard_after_forward": False}, {"gathered after forward": True}),
        (
            {"fsdp_mode": "grad_op", "reshard_after_forward": True},
            {"gathered after forward": False},
        ),
        (
            {"param_dtype": "bfloat16"},
            {
                "input dtype": torch.bfloat16,
                "weight dtype": torch.bfloat16,
                "master dtype": torch.float32,
            },
        ),
        (
            {"master_dtype": "bfloat16"},
            {
                "input dtype": torch.float32,
                "master dtype": torch.bfloat16,
                "moment dtype": torch.bfloat16,
            },
        ),
        ({"param_dtype": "bfloat16", "reduce_dtype": "bfloat16"}, {"gradient is bfloat16": True}),
        ({"param_dtype": "bfloat16", "reduce_dtype": "float32"}, {"gradient is bfloat16": False}),
        ({"cpu_offload": True}, {"offloaded": True}),
        ({"activation_checkpointing": True}, {"mlp passes": 4}),
        ({"forward_prefetch": 1}, {"prefetched": 1}),
        ({"root_wrap": False}, {"root sharded": False}),
    ],
    ids=lambda value: (
        None if "mlp passes" in value and len(value) > 1 else " ".join(map(str, value))
    ),
)
def test_an_option_does_what_it_says(
    ranks: Ranks, tiny_model_dir: Path, option: dict[str, Any], expected: dict[str, Any]
) -> None:
    seen = ranks.run(2, effects, Setup(str(tiny_model_dir), fsdp=option))[1]
    assert {name: seen[name] for name in expected} == expected


def test_deferred_gradients_are_reduced_once(ranks: Ranks, tiny_model_dir: Path) -> None:
    each, once = (
        ranks.run(2, effects, Setup(str(tiny_model_dir), fsdp={"defer_grad_sync": defer}))[0][
            "reductions"
        ]
        for defer in (False, True)
    )
    # Two blocks and the root, after each of two passes or after the last alone.
    assert (each, once) == (6, 3)


@pytest.mark.slow
@pytest.mark.long
def test_compiled_blocks_learn_the_same(ranks: Ranks, tiny_model_dir: Path) -> None:
    # One pass of one shape: each further one costs another compilation, not another insight.
    eager, compiled = (
        ranks.run(
            1,
            compiled_training,
            Setup(str(tiny_model_dir), fsdp={"torch_compile": on}, stack={"micro_batch_size": 8}),
        )[0]
        for on in (False, True)
    )
    assert largest_difference(eager[0], compiled[0]) < 1e-5
    assert (eager[1], compiled[1] > 0) == (0, True)


def compiled_training(rank_info: RankInfo, setup: Setup) -> tuple[dict[str, Tensor], int]:
    """Trained weights, and how many graphs were compiled; sampling in between compiles none."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    backend, stack = make_both(rank_info, setup)
    train_steps(stack, rank_info, [0])
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with backend.gathered() as policy:
        log_probs(policy, batch(3))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    return backend.full_state(), graphs
