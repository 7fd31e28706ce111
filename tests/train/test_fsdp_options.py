"""Every FSDPConfig option does what it says, and none changes what is learnt."""

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from rl_core.train.result import TrainStepResult
from schemas.recipe import LoraConfig
from tests.train.jobs import (
    LORA,
    Setup,
    largest_difference,
    train,
)
from tests.train.ranks import Ranks

STEPS = [0, 1, 2]
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
    "all": {"cpu_offload": True, "activation_checkpointing": True, "defer_grad_sync": True, "root_wrap": False},
}
_plain: dict[Any, tuple[dict[str, Tensor], list[TrainStepResult]]] = {}


def plain(ranks: Ranks, model_dir: Path, lora: LoraConfig | None) -> tuple[dict[str, Tensor], list[TrainStepResult]]:
    """One rank with the default options, computed once."""
    key = lora is None
    if key not in _plain:
        _plain[key] = ranks.run(1, train, Setup(str(model_dir), lora=lora), STEPS)[0]
    return _plain[key]


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("lora", [None, LORA], ids=["weights", "lora"])
@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_changes_nothing_that_is_learnt(
    ranks: Ranks, tiny_model_dir: Path, option: str, lora: LoraConfig | None, world_size: int
) -> None:
    weights, results = plain(ranks, tiny_model_dir, lora)
    setup = Setup(str(tiny_model_dir), fsdp=OPTIONS[option], lora=lora)
    got_weights, got_results = ranks.run(world_size, train, setup, STEPS)[0]
    assert largest_difference(weights, got_weights) < 3e-6
    assert [result.grad_norm for result in got_results] == pytest.approx([r.grad_norm for r in results], abs=1e-5)
    assert [result.loss for result in got_results] == pytest.approx([r.loss for r in results], abs=1e-6)
