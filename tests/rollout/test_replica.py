"""The model of a dedicated engine: with half an update, or one that is not the trainer's, it does
not sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from rl_core.errors import StaleEngine, WeightMismatch
from rl_core.models.bundle import ModelBundle
from rl_core.models.export.checksums import Checksum, checksum
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.dedicated import Replica
from rl_core.rollout.engine import check_version
from rl_core.train.weights.buckets import WeightVersion, pack
from schemas.recipe import ModelConfig
from schemas.sections.rollout import SyncMode
from schemas.sections.section import DType

FIRST, SECOND = WeightVersion(1), WeightVersion(2)


@pytest.fixture(scope="module")
def bundle(tiny_model_dir: Path) -> Iterator[ModelBundle]:
    """On a group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield ModelBundle(str(tiny_model_dir), ModelConfig(path=str(tiny_model_dir)))
    dist.destroy_process_group()


@pytest.fixture
def replica(bundle: ModelBundle) -> Replica:
    return Replica(bundle, None, SyncMode.FULL, DType.BFLOAT16, RankInfo(0, 1, "cpu", 1))


def other_weights(replica: Replica) -> dict[str, Tensor]:
    """What a trainer may have made of them."""
    return {name: weight.detach() + 1 for name, weight in replica.parameters.items()}


def sums(weights: dict[str, Tensor]) -> dict[str, Checksum]:
    return {name: checksum(weight) for name, weight in weights.items()}


def load(replica: Replica, weights: dict[str, Tensor]) -> None:
    for bucket in pack(weights.items(), 4096):
        replica.load(bucket)


def update(replica: Replica, weights: dict[str, Tensor], version: WeightVersion) -> None:
    load(replica, weights)
    replica.finish(version, sums(weights), torch.bfloat16)


def assert_unusable(replica: Replica) -> None:
    with pytest.raises(StaleEngine, match="no complete weights"):
        check_version(replica, None, evaluation=False)


def test_it_holds_a_version_from_the_end_of_an_update_to_the_begin_of_the_next(
    replica: Replica,
) -> None:
    assert_unusable(replica)
    weights = other_weights(replica)
    update(replica, weights, FIRST)
    assert all(torch.equal(replica.parameters[name], weight) for name, weight in weights.items())
    for evaluation in (False, True):
        check_version(replica, FIRST, evaluation=evaluation)
        check_version(replica, None, evaluation=evaluation)
        with pytest.raises(StaleEngine, match="with weights 2, the rollout engine holds weights 1"):
            check_version(replica, SECOND, evaluation=evaluation)
    name, weight = next(iter(weights.items()))
    load(replica, {name: weight})
    assert_unusable(replica)


def test_an_update_that_is_not_what_was_sent_leaves_it_unusable(replica: Replica) -> None:
    weights = other_weights(replica)
    update(replica, weights, FIRST)
    for spoilt in weights:
        expected = sums(weights | {spoilt: weights[spoilt] * 2})
        with pytest.raises(
            WeightMismatch, match=rf"rank 0, weights 2: 1 of \d+ tensors .* first {spoilt};"
        ):
            replica.finish(SECOND, expected, torch.bfloat16)
        assert_unusable(replica)
    with pytest.raises(WeightMismatch, match=r"first unheard\.of; .*found None"):
        replica.finish(SECOND, {"unheard.of": Checksum((1,), 1)}, torch.bfloat16)
    update(replica, weights, SECOND)
    check_version(replica, SECOND, evaluation=False)


def test_a_weight_that_was_never_sent_nor_compared_leaves_it_unusable(replica: Replica) -> None:
    weights = other_weights(replica)
    left_out, _ = weights.popitem()
    with pytest.raises(
        WeightMismatch, match=rf"1 of \d+ tensors were neither sent .* compared .*first {left_out}$"
    ):
        update(replica, weights, FIRST)
    assert_unusable(replica)
    # Compared once is enough for a weight that is frozen.
    held = {left_out: replica.parameters[left_out].detach()}
    replica.finish(FIRST, sums(weights | held), torch.bfloat16)
    update(replica, weights, SECOND)
    check_version(replica, SECOND, evaluation=False)
