"""What reaches which rank in a real world of 2 x 2 workers, and what comes back to the driver."""

import pytest
import torch

from rl_core.data_proto import DataProto, DataProtoError
from rl_core.distributed import Remote, submit


def batch(num_rows: int) -> DataProto:
    return DataProto.from_dict({"row": torch.arange(num_rows)})


def test_ranks_know_their_place(quad: Remote):
    assert quad.place() == [(0, 0, 0, 0, 0), (1, 0, 0, 0, 1), (2, 1, 0, 0, 0), (3, 1, 0, 0, 1)]


def test_every_dispatch_mode_reaches_the_ranks_it_says(quad: Remote):
    assert quad.scattered(batch(4), list("abcd")) == [
        (rank, [rank], ["abcd"[rank]]) for rank in range(4)
    ]
    assert quad.per_replica(batch(4)) == [(0, [0, 1]), (2, [2, 3])]
    assert quad.heads(batch(4)) == [(0, [0, 1]), (2, [2, 3])]
    assert quad.alone() == 0


def test_siblings_that_are_not_heard_take_part_in_collectives(quad: Remote):
    # Rows 0..3 are seen by both siblings of their replica, so their sum counts twice.
    assert quad.sum_over_siblings(batch(4)) == [12.0, 12.0]


def test_uneven_rows_are_filled_up_and_cut_off_again(quad: Remote):
    answer = quad.answer(batch(5), 2)
    assert len(answer) == 10
    assert answer.tensor("row").tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert quad.per_replica(batch(5)) == [(0, [0, 1, 2]), (2, [3, 4, 4])]


@pytest.mark.parametrize("num_rows", [1, 2, 5, 8])
def test_metrics_over_uneven_shards_are_those_of_the_whole(quad: Remote, num_rows: int):
    found = {name: metric.result() for name, metric in quad.measure(batch(num_rows)).items()}
    total = num_rows * (num_rows - 1) / 2
    last = num_rows - 1
    assert found == {"mean": total / num_rows, "sum": total, "max": last, "min": 0.0, "last": last}


def test_a_call_may_be_started_before_another_ends(quad: Remote):
    first, second = submit(quad.answer, batch(4), 1), submit(quad.measure, batch(2))
    assert second.result()["sum"].result() == 1.0
    assert first.result().tensor("row").tolist() == [0, 1, 2, 3]


def test_what_does_not_fit_is_refused_before_a_worker_is_called(quad: Remote):
    with pytest.raises(DataProtoError, match="3 rows cannot be cut into 4"):
        quad.scattered(batch(3), list("abc"))
    with pytest.raises(DataProtoError, match="differ in rows"):
        quad.scattered(batch(4), list("abc"))
    with pytest.raises(AttributeError):
        quad.no_such_method()
