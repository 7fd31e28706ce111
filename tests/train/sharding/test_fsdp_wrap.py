"""Gathered modules may run without FSDP's hooks, and have them back afterwards."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.models.causal_lm import blocks
from rl_core.models.decoding.without_hooks import without_hooks
from rl_core.ranks.rank_info import RankInfo
from tests.train.jobs import Setup, batch, log_probs, make_both, shard_of
from tests.train.ranks import Ranks


def hooks_of(unit: Any) -> list[int]:
    return [*unit._forward_pre_hooks, *unit._forward_hooks]


def with_and_without(rank_info: RankInfo, setup: Setup) -> dict[str, Any]:
    """What a gathered policy says with FSDP's hooks and without, and which hooks its first block
    has."""
    backend, _ = make_both(rank_info, setup)
    rows = shard_of(rank_info, batch(0))
    block: Any = blocks(backend.policy)[0]
    seen: list[int] = []
    own = block.register_forward_hook(lambda module, args, output: seen.append(1))
    before = hooks_of(block)
    with backend.gathered() as policy:
        expected = log_probs(policy, rows)
        with without_hooks(policy):
            inside, got = hooks_of(block), log_probs(policy, rows)
        again = log_probs(policy, rows)
        with pytest.raises(KeyError), without_hooks(policy):
            raise KeyError
    return {
        "same": torch.equal(expected, got) and torch.equal(expected, again),
        "inside": inside == [own.id],
        "restored": hooks_of(block) == before and len(before) == 3,
        "own": len(seen),
    }


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_only_what_fsdp_does_is_left_out(
    ranks: Ranks, tiny_model_dir: Path, world_size: int, dtype: str
) -> None:
    setup = Setup(str(tiny_model_dir), fsdp={"param_dtype": dtype})
    for found in ranks.run(world_size, with_and_without, setup):
        assert found == {"same": True, "inside": True, "restored": True, "own": 3}
