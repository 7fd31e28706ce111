"""Ranks of one replica play as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.episodes.replica_ranks import collect_parts, part_of, play_together
from tests.train.ranks import Ranks


def split_and_join(rank_info: RankInfo, num_rows: int) -> tuple[list[int], list[int]]:
    group: Any = dist.new_group()
    part = part_of(range(num_rows), group)
    return part, collect_parts(part, group)


@pytest.mark.parametrize(
    ("num_rows", "parts"), [(5, ([0, 1], [2, 3, 4])), (1, ([], [0])), (0, ([], []))]
)
def test_parts_come_back_in_order_on_the_first_rank(
    ranks: Ranks, num_rows: int, parts: tuple[list[int], list[int]]
) -> None:
    (first, joined), (second, nothing) = ranks.run(2, split_and_join, num_rows)
    assert (first, second) == parts
    assert (joined, nothing) == (list(range(num_rows)), [])


def play(rank_info: RankInfo, fails: bool) -> tuple[list[float], list[list[float]], str]:
    """What came out on this rank, what its share of the work was given, and the error it met."""
    seen: list[list[float]] = []
    group: Any = dist.new_group()

    def work(numbers: list[float]) -> float:
        seen.append(numbers)
        total = torch.tensor(sum(numbers))
        dist.all_reduce(total)
        return float(total)

    def turns(work: Callable[[list[float]], float]) -> list[float]:
        first = work([1.0, 2.0])
        if fails:
            raise ValueError("the environment broke")
        return [first, work([first])]

    try:
        return play_together(group, work, turns), seen, ""
    except ValueError as error:
        return [], seen, str(error)


def test_work_runs_on_all_ranks_with_what_the_first_one_says(ranks: Ranks) -> None:
    (played, seen, _), (nothing, seen_too, _) = ranks.run(2, play, False)
    assert played == [6.0, 12.0] and nothing == []
    assert seen == seen_too == [[1.0, 2.0], [6.0]]


def test_a_failure_of_the_first_rank_ends_the_others(ranks: Ranks) -> None:
    first, second = ranks.run(2, play, True)
    assert first[2] == "the environment broke"
    assert second == ([], [[1.0, 2.0]], "")
