"""Ranks are derived from the topology, and a topology that makes no world is refused by its
numbers."""

import itertools

import pytest

from rl_core.errors import RecipeError
from rl_core.ranks.rank_info import RankInfo, TrainTopology


def info(rank: int, topology: TrainTopology, world_size: int) -> RankInfo:
    return RankInfo(rank, world_size, "cpu", 1, topology=topology)


def test_every_place_of_the_grid_is_one_rank_with_tp_innermost_and_dp_outermost():
    topology = TrainTopology(dp_size=2, tp_size=2, sp_size=2, pp_size=3)
    places = [info(rank, topology, 24) for rank in range(24)]
    found = [(place.dp_rank, place.pp_rank, place.sp_rank, place.tp_rank) for place in places]
    assert found == list(itertools.product(range(2), range(3), range(2), range(2)))
    assert [place.rank for place in places if place.is_head] == [0, 12] == topology.head_ranks()


def test_dp_size_is_what_the_world_leaves():
    place = info(5, TrainTopology(tp_size=2), 8)
    assert (place.dp_size, place.tp_size, place.dp_rank, place.tp_rank) == (4, 2, 2, 1)
    assert place.topology.world_size == 8


def test_experts_are_spread_over_neighbouring_replicas():
    topology = TrainTopology(dp_size=4, ep_size=2, tp_size=2)
    assert [info(rank, topology, 8).ep_rank for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("topology", "world_size", "message"),
    [
        (
            TrainTopology(tp_size=2, sp_size=2),
            6,
            r"tp_size=2 x sp_size=2 x pp_size=1 = 4 does not divide .* 6 ranks",
        ),
        (
            TrainTopology(dp_size=3, tp_size=2),
            8,
            r"dp_size=3 x tp_size=2 .* = 6, but the world size is 8",
        ),
        (TrainTopology(ep_size=3), 4, r"ep_size=3 does not divide the 4 ranks"),
        (TrainTopology(ep_size=4, shard_size=2), 4, r"ep_size=4 does not divide the 2 ranks"),
    ],
)
def test_a_topology_that_does_not_fit_is_refused_with_its_sizes(
    topology: TrainTopology, world_size: int, message: str
):
    with pytest.raises(RecipeError, match=message):
        info(0, topology, world_size)


def test_a_size_below_one_is_refused():
    with pytest.raises(RecipeError, match="tp_size is 0"):
        TrainTopology(tp_size=0)


def test_what_no_backend_implements_is_refused_by_name():
    TrainTopology(tp_size=2, sp_size=2).check_trainable()
    TrainTopology(ep_size=2, sp_size=2).check_trainable()
    with pytest.raises(RecipeError, match=r"pp_size=2: .* not implemented"):
        TrainTopology(pp_size=2).check_trainable()
    with pytest.raises(RecipeError, match=r"ep_size=2 with tp_size=2: .* not implemented"):
        TrainTopology(ep_size=2, tp_size=2).check_trainable()


def test_a_rank_outside_its_world_is_refused():
    with pytest.raises(ValueError, match="rank 2 is outside a world of 2"):
        info(2, TrainTopology(), 2)
