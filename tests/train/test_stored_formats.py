"""Trained weights are stored in the master format, frozen ones as they are computed; that changes
no result."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from rl_core.ranks.rank_info import RankInfo
from rl_core.train.sharding import fsdp_wrap
from schemas.recipe import DType, EmaLoraConfig
from tests.train.jobs import LORA, Setup, batch, make_backend, make_both, shard_of
from tests.train.ranks import Ranks

BOTH = {torch.float32, torch.bfloat16}


def formats(rank_info: RankInfo, setup: Setup) -> dict[str, set[torch.dtype]]:
    """In what the parameters of each kind are stored."""
    policy, found = make_backend(rank_info, setup).policy, {}
    for name, parameter in policy.named_parameters():
        kind = "trained" if parameter.requires_grad else "averaged" if ".ema." in name else "frozen"
        found.setdefault(kind, set()).add(parameter.dtype)
    return found


@pytest.mark.parametrize(
    ("fsdp", "expected"),
    [
        ({}, {"trained": {torch.float32}, "averaged": {torch.float32}, "frozen": {torch.bfloat16}}),
        (
            {"master_dtype": "bfloat16"},
            {"trained": {torch.bfloat16}, "averaged": {torch.float32}, "frozen": {torch.bfloat16}},
        ),
        # What is not wrapped is computed as it is stored.
        (
            {"root_wrap": False},
            {"trained": {torch.float32}, "averaged": {torch.float32}, "frozen": BOTH},
        ),
    ],
    ids=["default", "bfloat16", "root_wrap"],
)
def test_each_kind_of_weight_has_its_format(
    ranks: Ranks, tiny_model_dir: Path, fsdp: dict[str, Any], expected: dict[str, set[torch.dtype]]
) -> None:
    setup = Setup(str(tiny_model_dir), {"param_dtype": "bfloat16", **fsdp}, LORA, EmaLoraConfig())
    assert ranks.run(1, formats, setup)[0] == expected


def trained(rank_info: RankInfo, setup: Setup, *, widely: bool) -> list[torch.Tensor]:
    """The adapters after two steps. Args: widely: store everything in float32."""

    def store(policy: Any, *args: object, **kwargs: object) -> None:
        fsdp_wrap.cast_parameters(policy, DType.FLOAT32)

    with patch.object(fsdp_wrap, "cast_to_stored", store if widely else fsdp_wrap.cast_to_stored):
        backend, stack = make_both(rank_info, setup)
    for step in range(2):
        stack.train(shard_of(rank_info, batch(step)))
    return [*backend.full_state().values()]


@pytest.mark.parametrize("root_wrap", [True, False])
@pytest.mark.parametrize("world_size", [1, 2])
def test_the_format_of_frozen_weights_changes_nothing(
    ranks: Ranks, tiny_model_dir: Path, world_size: int, root_wrap: bool
) -> None:
    setup = Setup(str(tiny_model_dir), {"param_dtype": "bfloat16", "root_wrap": root_wrap}, LORA)
    as_computed, wide = (
        ranks.run(world_size, trained, setup, widely=widely)[0] for widely in (False, True)
    )
    assert as_computed
    for got, expected in zip(as_computed, wide, strict=True):
        assert torch.equal(got, expected)
