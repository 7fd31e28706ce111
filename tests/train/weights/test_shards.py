"""Weights that each rank sends by itself: together they are the weights, each number once."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl_core.models.export.checksums import checksum, weighted_sum
from rl_core.ranks.rank_info import RankInfo, TrainTopology
from rl_core.train.weights.buckets import Bucket, pack_ranges, sent_weights, unpack
from rl_core.train.weights.shards import Part, other_weights, own_parts
from schemas.sections.rollout import SyncMode
from tests.train.jobs import Setup
from tests.train.parallel import LORA, build, copy_of
from tests.train.ranks import Ranks
from tests.train.sharding.test_expert_parallel import SHAPE

CASES: dict[str, tuple[int, TrainTopology, dict[str, Any], SyncMode]] = {
    "one rank": (1, TrainTopology(), {}, SyncMode.FULL),
    "two ranks": (2, TrainTopology(), {}, SyncMode.FULL),
    "four ranks": (4, TrainTopology(), {}, SyncMode.FULL),
    "two copies of two ranks": (4, TrainTopology(shard_size=2), {}, SyncMode.FULL),
    "a copy on every rank": (2, TrainTopology(shard_size=1), {}, SyncMode.FULL),
    "shared matrices": (4, TrainTopology(tp_size=2), {}, SyncMode.FULL),
    "shared matrices, not cut again": (2, TrainTopology(tp_size=2), {}, SyncMode.FULL),
    "shared sequences": (2, TrainTopology(sp_size=2), {}, SyncMode.FULL),
    "experts": (2, TrainTopology(ep_size=2), {}, SyncMode.FULL),
    "experts, cut again": (4, TrainTopology(ep_size=2), {}, SyncMode.FULL),
    "experts, two copies": (4, TrainTopology(ep_size=2, shard_size=2), {}, SyncMode.FULL),
    "adapters": (2, TrainTopology(), {"lora": LORA}, SyncMode.ADAPTER),
    "merged": (2, TrainTopology(), {"lora": LORA}, SyncMode.FULL),
}
SENDERS = {
    "merged": 0,
    "one rank": 1,
    "a copy on every rank": 1,
    "four ranks": 4,
    "experts, cut again": 4,
}
"""Ranks that send something by themselves, where it is not two."""
GATHERED = {
    "merged",
    "shared matrices",
    "shared matrices, not cut again",
    "experts, cut again",
}


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Ranks]:
    with Ranks(4) as started:
        yield started


@pytest.fixture(scope="module")
def mixture(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(copy_of(tiny_model_dir, tmp_path_factory.mktemp("mixture"), "qwen3_moe", **SHAPE))


def sends(
    rank_info: RankInfo, topology: TrainTopology, setup: Setup, mode: SyncMode
) -> tuple[list[Part], dict[str, Tensor], dict[str, Tensor]]:
    """What a rank sends by itself, what the first one sends for all, and the weights."""
    backend, _ = build(rank_info, topology, setup)
    with torch.no_grad():
        for value in backend.trainable.values():
            value.add_(0.01)
    given = backend, mode
    own = []
    for part in own_parts(*given, averaged=False):
        own.append(Part(part.name, part.first, part.numbers_N.clone(), part.shape))
    others = {
        name: value.detach().clone()
        for name, value in other_weights(*given, torch.float32, averaged=False)
    }
    whole = {
        name: value.detach().clone()
        for name, value in sent_weights(*given, torch.float32, averaged=False)
    }
    return own, others, whole


@pytest.mark.parametrize("case", CASES)
def test_the_parts_of_all_ranks_are_the_weights(
    four_ranks: Ranks, tiny_model_dir: Path, mixture: str, case: str
):
    num_ranks, topology, options, mode = CASES[case]
    setup = Setup(mixture if "experts" in case else str(tiny_model_dir), **options)
    said = four_ranks.run(num_ranks, sends, topology, setup, mode)
    _, others, whole = said[0]
    parts = [part for own, _, _ in said for part in own]
    if case != "shared matrices":
        assert sum(bool(own) for own, _, _ in said) == SENDERS.get(case, 2)
    assert bool(others) == (case in GATHERED)
    assert set(others).isdisjoint(part.name for part in parts)
    counted = {name: torch.zeros(value.numel()) for name, value in whole.items()}
    found = {name: torch.empty_like(value) for name, value in whole.items()}
    for part in parts:
        counted[part.name][part.first : part.first + len(part.numbers_N)] += 1
        assert part.shape == tuple(whole[part.name].shape)
    for name, value in others.items():
        counted[name] += 1
        found[name].copy_(value)
    assert all((count == 1).all() for count in counted.values())
    ranges = [(part.name, part.first, part.numbers_N) for part in parts]
    buckets: list[Bucket] = list(pack_ranges(ranges, 1000))
    assert all(bucket.values_N.nbytes == 1000 for bucket in buckets[:-1])
    for bucket in buckets:
        unpack(bucket, found)
    assert all(torch.equal(found[name], value) for name, value in whole.items())


def test_sums_of_parts_are_that_of_the_whole():
    numbers = torch.randn(7, 11).bfloat16()
    flat, cuts = numbers.reshape(-1), [0, 3, 3, 40, 77]
    parts = [weighted_sum(flat[a:b], a) for a, b in pairwise(cuts)]
    assert sum(parts) % 2**64 == checksum(numbers).value
    assert weighted_sum(flat[3:]) != weighted_sum(flat[3:], 3)
