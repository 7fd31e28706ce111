"""Properties of the training order."""

from typing import Any

import pytest

from rl_core.data.order.prompt_source import PromptSource
from rl_core.errors import DataError

ITEMS = [{"uid": str(i)} for i in range(10)]


def uids(source: PromptSource, num_batches: int) -> list[list[Any]]:
    return [[item["uid"] for item in source.next_batch()] for _ in range(num_batches)]


def test_resumed_order_equals_uninterrupted() -> None:
    whole = uids(PromptSource(ITEMS, 3, seed=0), 12)
    for cut in range(12):
        first = PromptSource(ITEMS, 3, seed=0)
        uids(first, cut)
        second = PromptSource(ITEMS, 3, seed=0)
        second.load_state_dict(first.state_dict())
        assert uids(second, 12 - cut) == whole[cut:]


def test_epoch_repeats_no_item_and_drops_the_partial_batch() -> None:
    source = PromptSource(ITEMS, 3, seed=0)
    first, second = uids(source, 3), uids(source, 3)
    assert source.epoch == 1
    assert all(len({uid for batch in epoch for uid in batch}) == 9 for epoch in (first, second))
    assert first != second


def test_order_depends_on_the_seed_alone() -> None:
    assert uids(PromptSource(ITEMS, 3, seed=0), 6) == uids(PromptSource(ITEMS, 3, seed=0), 6)
    assert uids(PromptSource(ITEMS, 3, seed=0), 6) != uids(PromptSource(ITEMS, 3, seed=1), 6)


@pytest.mark.parametrize("batch_size", [0, 11])
def test_impossible_batch_size_is_refused(batch_size: int) -> None:
    with pytest.raises(DataError, match=f"{batch_size}"):
        PromptSource(ITEMS, batch_size, seed=0)


def test_state_of_other_rows_is_refused() -> None:
    source = PromptSource(ITEMS, 3, seed=0)
    with pytest.raises(DataError, match="num_items 10, this run has 9"):
        PromptSource(ITEMS[:9], 3, seed=0).load_state_dict(source.state_dict())
