"""How rows are divided into passes."""

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from rl_core.train import micro_batches
from rl_core.train.micro_batches import Lengths
from tests.train.jobs import batch

lengths = st.lists(st.integers(1, 40), min_size=0, max_size=30)
each_cut = pytest.mark.parametrize(
    "cut", [micro_batches.by_token_count, micro_batches.in_order_by_token_count]
)


@each_cut
@given(lengths_B=lengths, max_tokens=st.integers(1, 100))
def test_every_row_is_in_one_pass_and_no_pass_is_too_long(
    cut: Any, lengths_B: list[int], max_tokens: int
) -> None:
    rows = list(range(len(lengths_B)))
    parts = cut(rows, lengths_B, max_tokens)
    assert sorted(row for part in parts for row in part) == rows
    assert all(part == sorted(part) for part in parts)
    loads = [sum(lengths_B[row] for row in part) for part in parts]
    assert all(
        load <= max_tokens or len(part) == 1 for load, part in zip(loads, parts, strict=True)
    )
    assert loads == sorted(loads, reverse=True)


@each_cut
@given(lengths_B=lengths, max_tokens=st.integers(1, 100), wanted=st.integers(1, 40))
@example(lengths_B=[3, 6, 4, 4], max_tokens=9, wanted=3)
def test_a_pass_count_that_other_ranks_need_is_kept_as_far_as_there_are_rows(
    cut: Any, lengths_B: list[int], max_tokens: int, wanted: int
) -> None:
    rows = list(range(len(lengths_B)))
    own = len(cut(rows, lengths_B, max_tokens))
    parts = cut(rows, lengths_B, max_tokens, max(own, wanted))
    assert len(parts) == min(max(own, wanted), len(rows))
    assert all(
        len(part) == 1 or sum(lengths_B[row] for row in part) <= max_tokens for part in parts
    )


def test_siblings_stay_together_in_passes_in_order() -> None:
    lengths_B = [5, 5, 5, 4, 4, 4]
    assert micro_batches.in_order_by_token_count(list(range(6)), lengths_B, 15) == [
        [0, 1, 2],
        [3, 4, 5],
    ]


@given(
    lengths_B=lengths,
    groups=st.lists(st.integers(1, 9), min_size=30, max_size=30),
    max_tokens=st.integers(1, 100),
    wanted=st.integers(0, 10),
)
def test_what_siblings_share_counts_once_in_each_pass(
    lengths_B: list[int], groups: list[int], max_tokens: int, wanted: int
) -> None:
    """Rows of a group have half of the shorter one in common."""
    group_B = [number for number, size in enumerate(groups) for _ in range(size)][: len(lengths_B)]
    known = Lengths(lengths_B, group_B, [length // 2 for length in lengths_B])
    rows = list(range(len(lengths_B)))
    parts = micro_batches.in_order_by_token_count(rows, lengths_B, max_tokens, wanted, known.saved)
    assert (
        sorted(parts) == sorted(part for part in parts if part)
        and sorted(micro_batches.flatten(parts)) == rows
    )
    assert all(part == list(range(part[0], part[0] + len(part))) for part in parts)
    assert all(known.of(part) <= max_tokens or len(part) == 1 for part in parts)
    assert len(parts) >= min(wanted, len(rows))


def test_rows_weigh_less_behind_a_sibling_alone() -> None:
    known = Lengths([100, 90, 95], [0, 0, 1], [80, 80, 80])
    assert known.saved(0, 1) == 70, "an eighth of the prompt's keys is copied"
    assert known.saved(1, 2) == Lengths([100, 90, 95]).saved(0, 1) == 0
    assert known.of([0, 1, 2]) == 100 + 20 + 95 and known.of([1]) == 90


def test_passes_are_filled_evenly() -> None:
    lengths_B = [9, 1, 5, 5, 8, 4]
    parts = micro_batches.by_token_count(list(range(6)), lengths_B, 17)
    assert [sum(lengths_B[row] for row in part) for part in parts] == [17, 15]


@pytest.mark.parametrize(
    ("num_parts", "parts"),
    [(1, [[3, 5, 6, 8, 9]]), (2, [[3, 5, 6], [8, 9]]), (7, [[3], [5], [6], [8], [9], [], []])],
)
def test_mini_batches_differ_by_one_row_at_most(num_parts: int, parts: list[list[int]]) -> None:
    assert micro_batches.split_evenly([3, 5, 6, 8, 9], num_parts) == parts


def test_rows_without_an_action_are_not_trained() -> None:
    mask = torch.tensor([[1, 0], [0, 0], [0, 1], [0, 0]])
    assert micro_batches.trained_rows(mask) == [0, 2]


def test_an_idle_row_is_one_token_and_teaches_nothing() -> None:
    idle = micro_batches.idle_row(batch(0))
    assert idle.tensor("attention_mask").tolist() == [[1, 0]]
    assert idle.tensor("response_mask").tolist() == [[0]]
    assert idle.tensor("position_ids").tolist() == [[0, 0]]
