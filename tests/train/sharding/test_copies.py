"""HSDP: ranks shard the weights within groups, and gradients are summed over all of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from rl_core.errors import RecipeError
from rl_core.ranks.rank_info import RankInfo, TrainTopology
from tests.train.jobs import Setup, largest_difference
from tests.train.parallel import LORA, STEPS, build, load, save, train
from tests.train.ranks import Ranks

CASES: dict[str, tuple[TrainTopology, dict[str, Any]]] = {
    "two copies of two ranks": (TrainTopology(shard_size=2), {}),
    "a copy on every rank": (TrainTopology(shard_size=1), {"fsdp": {"root_wrap": False}}),
    "adapters, weights kept": (
        TrainTopology(shard_size=2),
        {"lora": LORA, "fsdp": {"reshard_after_forward": False}},
    ),
    "Muon, deferred sync": (
        TrainTopology(shard_size=2),
        {"optimizer": {"name": "muon"}, "fsdp": {"defer_grad_sync": True}},
    ),
    "bytes": (TrainTopology(shard_size=2), {"optimizer": {"name": "adamw_8bit"}}),
    "shared matrices": (TrainTopology(shard_size=1, tp_size=2), {}),
}


@pytest.fixture(scope="module")
def four_ranks() -> Iterator[Ranks]:
    with Ranks(4) as started:
        yield started


@pytest.mark.parametrize("case", CASES)
def test_copies_train_like_one_rank(four_ranks: Ranks, tiny_model_dir: Path, case: str) -> None:
    topology, options = CASES[case]
    setup = Setup(str(tiny_model_dir), **options)
    weights, results = four_ranks.once(1, train, TrainTopology(), setup, STEPS)[0]
    got_weights, got_results = four_ranks.run(4, train, topology, setup, STEPS)[0]
    # Muon orthogonalises in bfloat16, which enlarges the rounding of sums.
    limit = 2e-4 if "Muon" in case else 1e-5
    assert largest_difference(weights, got_weights) < limit
    norms = [result.grad_norm for result in results]
    assert [result.grad_norm for result in got_results] == pytest.approx(norms, abs=limit)


def layout(rank_info: RankInfo, topology: TrainTopology, setup: Setup) -> dict[str, Any]:
    """How the first trained matrix is held by a rank."""
    backend, _ = build(rank_info, topology, setup)
    weight = next(value for value in backend.trainable.values() if value.ndim == 2)
    assert isinstance(weight, DTensor)
    local = weight.to_local()
    return {
        "mesh": tuple(weight.device_mesh.shape),
        "local": local.detach().clone(),
        "whole": weight.shape,
    }


def test_a_rank_holds_its_part_of_its_own_copy(four_ranks: Ranks, tiny_model_dir: Path) -> None:
    setup = Setup(str(tiny_model_dir))
    held = four_ranks.run(4, layout, TrainTopology(shard_size=2), setup)
    assert {one["mesh"] for one in held} == {(2, 2)}
    assert {len(one["local"]) * 2 for one in held} == {held[0]["whole"][0]}
    assert torch.equal(held[0]["local"], held[2]["local"])
    assert torch.equal(held[1]["local"], held[3]["local"])
    assert not torch.equal(held[0]["local"], held[1]["local"])


def test_a_checkpoint_loads_with_and_without_copies(
    four_ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    setup, copies = Setup(str(tiny_model_dir)), TrainTopology(shard_size=2)
    folder, exported = str(tmp_path / "saved"), str(tmp_path / "exported")
    four_ranks.run(4, save, copies, setup, folder, exported)
    whole = four_ranks.run(4, train, copies, setup, STEPS)[0][0]
    resumed = four_ranks.run(4, load, copies, setup, folder)[0]
    assert largest_difference(whole, resumed) == 0
    for world_size in (1, 2):
        elsewhere = four_ranks.run(world_size, load, TrainTopology(), setup, folder)[0]
        assert largest_difference(whole, elsewhere) < 1e-5


def test_groups_that_do_not_fit_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"shard_size=3 does not divide the 4 ranks"):
        RankInfo(0, 4, "cpu", 1, topology=TrainTopology(shard_size=3))
