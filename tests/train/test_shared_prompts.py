"""Training in which siblings share their prompt learns the same."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.data_proto import DataProto
from rl_core.models.decoding.decode import positions_of
from rl_core.ranks.rank_info import RankInfo
from tests.train.jobs import NUM_PROMPT, Setup, batch, largest_difference, make_both, shard_of
from tests.train.ranks import Ranks


def siblings(seed: int) -> DataProto:
    """`batch`, every three rows to one prompt."""
    rows = batch(seed, 9)
    assert rows.batch is not None
    for name in ("input_ids", "attention_mask"):
        rows.batch[name][:, :NUM_PROMPT] = rows.batch[name][::3, :NUM_PROMPT].repeat_interleave(
            3, 0
        )
    rows.batch["position_ids"] = positions_of(rows.batch["attention_mask"])
    return rows


def train(rank_info: RankInfo, setup: Setup) -> tuple[dict[str, Tensor], list[int]]:
    """The trained weights (rank 0 only), and the tokens that the last norm met, pass by pass."""
    backend, stack = make_both(rank_info, setup)
    tokens: list[int] = []
    norm = backend.policy.language_model.model.norm
    norm.register_forward_hook(
        lambda _, args, __: tokens.append(args[0].shape[0] * args[0].shape[1])
    )
    for seed in (0, 1):
        stack.train(shard_of(rank_info, siblings(seed)))
    return backend.full_state(), tokens


@pytest.mark.parametrize(
    "passes", [{"micro_batch_size": 3}, {"max_tokens_per_micro_batch": 60}], ids=str
)
@pytest.mark.parametrize("world_size", [1, 2])
def test_training_learns_the_same_from_fewer_tokens(
    ranks: Ranks, tiny_model_dir: Path, world_size: int, passes: dict[str, Any]
) -> None:
    plain, all_tokens = ranks.run(1, train, Setup(str(tiny_model_dir)))[0]
    shared, tokens = ranks.run(
        world_size, train, Setup(str(tiny_model_dir), stack={**passes, "share_prompts": True})
    )[0]
    assert largest_difference(plain, shared) < 1e-5
    assert sum(tokens) < 0.8 * sum(all_tokens)
    assert all(torch.isfinite(value).all() for value in shared.values())
