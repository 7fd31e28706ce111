"""What each rank is called with: shards, copies of rows that fill up, and refusals where nothing
fits."""

import numpy as np
import pytest
import torch

from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.data_proto import DataProto, DataProtoError
from rl_core.distributed.collect import collect, join_meta, real_rows
from rl_core.ranks.dispatch import (
    NUM_PADDING_ROWS,
    Broadcast,
    CallSpec,
    Collect,
    Dispatch,
    Execute,
    cut,
    distributed,
    num_real_rows,
    shard_of,
    spec_of,
)
from rl_core.ranks.rank_info import TrainTopology

TWO_BY_TWO = TrainTopology(dp_size=2, tp_size=2)
"""Ranks 0 and 1 are the first replica, 2 and 3 the second."""


def batch(num_rows: int) -> DataProto:
    return DataProto.from_dict(
        {"row": torch.arange(num_rows), "response_mask": torch.ones(num_rows, 3).long()},
        {"name": [f"row {row}" for row in range(num_rows)]},
        {"source": "here"},
    )


def rows_by_rank(
    dispatch: Dispatch, num_rows: int, topology: TrainTopology
) -> dict[int, list[int]]:
    plan = cut(CallSpec(dispatch), (batch(num_rows),), {}, topology)
    return {rank: args[0].tensor("row").tolist() for rank, (args, _) in plan.calls.items()}


def test_scatter_cuts_over_all_ranks():
    assert rows_by_rank(Dispatch.SCATTER, 4, TWO_BY_TWO) == {0: [0], 1: [1], 2: [2], 3: [3]}


def test_dp_scatter_gives_the_siblings_of_a_replica_the_same_rows_and_hears_one_of_them():
    assert rows_by_rank(Dispatch.DP_SCATTER, 4, TWO_BY_TWO) == {
        0: [0, 1],
        1: [0, 1],
        2: [2, 3],
        3: [2, 3],
    }
    assert cut(CallSpec(Dispatch.DP_SCATTER), (batch(4),), {}, TWO_BY_TWO).answering == (0, 2)


def test_dp_scatter_head_calls_the_first_rank_of_each_replica_only():
    assert rows_by_rank(Dispatch.DP_SCATTER_HEAD, 4, TWO_BY_TWO) == {0: [0, 1], 2: [2, 3]}


def test_pipeline_and_sequence_siblings_get_the_same_rows_too():
    topology = TrainTopology(dp_size=2, sp_size=2, pp_size=2)
    assert rows_by_rank(Dispatch.DP_SCATTER, 2, topology) == {
        rank: [rank // 4] for rank in range(8)
    }


def test_broadcast_sends_everything_whole():
    plan = cut(CallSpec(), (batch(3), [1, 2]), {"x": Broadcast(7)}, TWO_BY_TWO)
    assert list(plan.calls) == [0, 1, 2, 3] == list(plan.answering)
    args, kwargs = plan.calls[3]
    assert (len(args[0]), args[1], kwargs) == (3, [1, 2], {"x": 7})


def test_only_what_has_rows_is_cut():
    arguments = (
        torch.arange(4),
        np.arange(4),
        ["a", "b", "c", "d"],
        "abcd",
        {"k": [1, 2]},
        None,
        Broadcast([1, 2, 3]),
    )
    plan = cut(CallSpec(Dispatch.DP_SCATTER), arguments, {"step": 3}, TWO_BY_TWO)
    (tensor, array, names, text, mapping, nothing, whole), kwargs = plan.calls[2]
    assert (tensor.tolist(), array.tolist(), names) == ([2, 3], [2, 3], ["c", "d"])
    assert (text, mapping, nothing, whole, kwargs) == (
        "abcd",
        {"k": [1, 2]},
        None,
        [1, 2, 3],
        {"step": 3},
    )


@pytest.mark.parametrize(
    "value", [torch.arange(5), np.arange(5), list(range(5)), (1, 2, 3, 4, 5)], ids=type
)
def test_rows_that_do_not_divide_are_refused_unless_they_are_a_batch(value: object):
    with pytest.raises(
        DataProtoError, match=r"5 rows cannot be cut into 2 equal shards; .*Broadcast"
    ):
        cut(CallSpec(Dispatch.DP_SCATTER), (value,), {}, TWO_BY_TWO)


def test_what_has_no_rows_or_other_rows_is_refused():
    with pytest.raises(DataProtoError, match="argument 0 has no leading dimension"):
        cut(CallSpec(Dispatch.SCATTER), (torch.tensor(1.0),), {}, TWO_BY_TWO)
    with pytest.raises(DataProtoError, match=r"differ in rows: \{0: 4, 'rewards': 8\}"):
        cut(CallSpec(Dispatch.SCATTER), (batch(4),), {"rewards": list(range(8))}, TWO_BY_TWO)
    with pytest.raises(DataProtoError, match="empty batch"):
        cut(CallSpec(Dispatch.SCATTER), (batch(4)[:0],), {}, TWO_BY_TWO)


@pytest.mark.parametrize("num_rows", [1, 3, 4, 5, 7, 8, 9])
@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 5])
def test_shards_are_equal_and_their_real_rows_are_the_batch(num_rows: int, num_parts: int):
    shards = [shard_of(batch(num_rows), num_parts, part) for part in range(num_parts)]
    assert len({len(shard) for shard in shards}) == 1
    real = [row for shard in shards for row in shard.tensor("row").tolist()[: num_real_rows(shard)]]
    assert real == list(range(num_rows))
    for shard in shards:
        copies = shard[num_real_rows(shard) :]
        assert copies.tensor("row").tolist() == [num_rows - 1] * len(copies)
        assert copies.tensor("response_mask").sum() == 0
        assert (shard[: num_real_rows(shard)].tensor("response_mask") == 1).all()


def test_filling_up_changes_nothing_of_the_callers():
    whole = batch(3)
    shard = shard_of(whole, 2, 1)
    shard.meta_info["more"] = 1
    assert (whole.tensor("response_mask") == 1).all()
    assert whole.meta_info == {"source": "here"}
    assert (shard.meta_info[NUM_PADDING_ROWS], shard.non_tensor_batch["name"].tolist()) == (
        1,
        ["row 2", "row 2"],
    )


def test_a_jagged_mask_is_zeroed_too():
    rows = [torch.ones(2), torch.ones(3), torch.ones(1)]
    masks = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    from rl_core.ranks.dispatch import _without_last

    assert [row.tolist() for row in _without_last(masks, 1).unbind()] == [[1, 1], [1, 1, 1], [0]]


def test_answers_to_copies_are_cut_off_whatever_the_answers_per_row():
    assert real_rows([3, 3], None) == 6
    assert real_rows([2, 2], 4) == 4
    assert real_rows([3, 3], 5) == 5
    assert real_rows([12, 12], 5) == 20
    with pytest.raises(
        DataProtoError, match=r"5 rows were filled up to 2 shards of 3, and answered with \[3, 2\]"
    ):
        real_rows([3, 2], 5)


def test_metadata_is_joined_and_its_metrics_are_reduced():
    one = {"source": "here", "metrics": {"a": Metric(MetricKind.MEAN, 6.0, 3)}, NUM_PADDING_ROWS: 0}
    two = {"source": "here", "metrics": {"a": Metric(MetricKind.MEAN, 1.0, 1)}, NUM_PADDING_ROWS: 1}
    assert join_meta([one, two]) == {
        "source": "here",
        "metrics": {"a": Metric(MetricKind.MEAN, 7.0, 4)},
    }
    with pytest.raises(DataProtoError, match=r"'source'.* 'here', and 'there' of shard 1"):
        join_meta([one, {"source": "there"}])


class Merged(tuple):
    """Answers that know how they merge."""

    @classmethod
    def merge(cls, parts):
        return cls(sum(parts, ()))


def test_metrics_are_never_those_of_rank_0():
    parts = [{"a": Metric(MetricKind.SUM, 1.0, 1)}, {"a": Metric(MetricKind.SUM, 2.0, 1)}]
    assert collect(CallSpec(collect=Collect.REDUCE), parts) == {"a": Metric(MetricKind.SUM, 3.0, 2)}
    assert collect(CallSpec(collect=Collect.REDUCE), [Merged((1,)), Merged((2,))]) == (1, 2)
    for answers in (parts, [part["a"] for part in parts]):
        with pytest.raises(TypeError, match="REDUCE"):
            collect(CallSpec(collect=Collect.RANK_ZERO), answers)
    with pytest.raises(TypeError, match="cannot reduce float"):
        collect(CallSpec(collect=Collect.REDUCE), [1.0, 2.0])


def test_a_reduced_broadcast_counts_a_replica_once():
    assert cut(CallSpec(collect=Collect.REDUCE), (), {}, TWO_BY_TWO).answering == (0, 2)


class Worker:
    """Methods in the three ways of being marked."""

    def plain(self):
        """Not marked."""

    @distributed(Dispatch.SCATTER, Collect.JOIN)
    def joined(self):
        """Marked."""

    @distributed(execute=Execute.RANK_ZERO)
    def alone(self):
        """Marked by where it runs."""


def test_marks_are_read_back_and_contradictions_refused():
    assert spec_of(Worker, "plain") == CallSpec()
    assert spec_of(Worker, "joined") == CallSpec(Dispatch.SCATTER, Collect.JOIN)
    assert spec_of(Worker, "alone") == CallSpec(
        Dispatch.BROADCAST, Collect.RANK_ZERO, Execute.RANK_ZERO
    )
    assert list(cut(spec_of(Worker, "alone"), (1,), {}, TWO_BY_TWO).calls) == [0]
    with pytest.raises(ValueError, match="one rank"):
        distributed(Dispatch.SCATTER, execute=Execute.RANK_ZERO)
    with pytest.raises(ValueError, match="scatters"):
        distributed(collect=Collect.JOIN)
    with pytest.raises(AttributeError):
        spec_of(Worker, "missing")
