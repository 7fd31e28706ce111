"""Batches stay where they were made: counted in bytes, on the driver and on the ranks that consume
them."""

import pickle

import pytest
import torch

from rl_core.data_proto import DataProto, DataProtoError
from rl_core.distributed import Block, DataProtoRef, Remote, refs
from rl_core.distributed.layers import Derived
from tests.distributed.components import WIDTH, count_fetches

Pair = tuple[Block, Remote, Remote]
ROW_BYTES = WIDTH * 4
"""Of the wide column; the narrow ones travel with the description."""


@pytest.fixture
def made(pair: Pair) -> DataProtoRef:
    """Six rows, three made on each rank."""
    return pair[1].answer(DataProto.from_dict({"row": torch.arange(6)}), 1)


@pytest.fixture
def fetches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of tensors that the driver fetches, an entry per fetch."""
    monkeypatch.setattr(refs, "_get", refs._get)
    return count_fetches()


def test_the_driver_reads_narrow_columns_without_fetching(made: DataProtoRef, fetches: list[int]):
    assert made.tensor("rewards").tolist() == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert (len(made), made.keys) == (6, {"row", "wide", "rewards", "name"})
    assert made.meta_info["metrics"]["rank"].result() == 1.0
    assert sum(fetches) == 0
    # What the driver holds is a description: it does not grow with the wide column.
    assert sum(len(pickle.dumps(part.narrow)) for part in made.parts) < 6 * ROW_BYTES


def test_the_driver_fetches_one_column_by_name(made: DataProtoRef, fetches: list[int]):
    assert made.non_tensor_batch["name"].tolist() == [f"row {row}" for row in range(6)]
    assert sum(fetches) == 0
    assert made.tensor("wide").sum(1).tolist() == [row * WIDTH for row in range(6)]
    assert sum(fetches) == 6 * ROW_BYTES


def test_a_rank_fetches_its_own_shard_only(made: DataProtoRef, pair: Pair, fetches: list[int]):
    probe = pair[1]
    before = probe.fetched()
    assert probe.consume(made) == [([0, 1, 2], 3.0 * WIDTH), ([3, 4, 5], 12.0 * WIDTH)]
    assert [after - start for after, start in zip(probe.fetched(), before, strict=True)] == [
        3 * ROW_BYTES
    ] * 2
    assert sum(fetches) == 0


def test_a_shard_may_take_only_some_columns(made: DataProtoRef, fetches: list[int]):
    shard = made.shard(2, 1, ["rewards", "name"]).fetch()
    assert (shard.tensor("rewards").tolist(), shard.non_tensor_batch["name"].tolist()) == (
        [1.5, 2.0, 2.5],
        ["row 3", "row 4", "row 5"],
    )
    assert sum(fetches) == 0
    with pytest.raises(DataProtoError, match=r"no columns \['missing'\]"):
        made.shard(2, 1, ["missing"])


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4, 5, 7])
def test_shards_by_reference_equal_shards_of_the_batch(made: DataProtoRef, num_parts: int):
    from rl_core.ranks.dispatch import shard_of

    made.union(DataProto.from_dict({"response_mask": torch.ones(6, 2)}, {"more": list("abcdef")}))
    whole = made.fetch()
    for part in range(num_parts):
        one, two = made.shard(num_parts, part).fetch(), shard_of(whole, num_parts, part)
        assert one.batch is not None
        assert two.batch is not None
        assert (
            set(one.batch.keys())
            == set(two.batch.keys())
            == {"row", "wide", "rewards", "response_mask"}
        )
        assert all(torch.equal(one.batch[key], two.batch[key]) for key in two.batch.keys())  # noqa: SIM118
        assert {key: value.tolist() for key, value in one.non_tensor_batch.items()} == {
            key: value.tolist() for key, value in two.non_tensor_batch.items()
        }
        assert one.meta_info == two.meta_info


def test_columns_the_driver_adds_travel_with_the_rows(made: DataProtoRef, pair: Pair):
    made.union(DataProto.from_dict({"advantages": torch.arange(6.0)}))
    assert made.tensor("advantages").tolist() == [0, 1, 2, 3, 4, 5]
    assert pair[1].columns(made) == [["advantages", "name", "rewards", "row", "wide"]] * 2
    with pytest.raises(DataProtoError, match=r"shared columns: \['advantages'\]"):
        made.union(DataProto.from_dict({"advantages": torch.zeros(6)}))
    with pytest.raises(DataProtoError, match=r"5 rows of .* do not go with 6 rows"):
        made.union(DataProto.from_dict({"other": torch.zeros(5)}))


def test_an_uneven_batch_by_reference_is_filled_up_for_its_consumer(pair: Pair):
    probe = pair[1]
    made = probe.answer(DataProto.from_dict({"row": torch.arange(5)}), 1)
    assert made.tensor("row").tolist() == [0, 1, 2, 3, 4]
    assert probe.consume(made) == [([0, 1, 2], 3.0 * WIDTH), ([3, 4, 4], 11.0 * WIDTH)]


def test_a_missing_column_is_named(made: DataProtoRef):
    with pytest.raises(DataProtoError, match=r"no tensor 'logits'.*'rewards'"):
        made.tensor("logits")
    with pytest.raises(KeyError, match="uid"):
        made.non_tensor_batch["uid"]
    assert list(made.non_tensor_batch) == ["name"]


def scaled(wide: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """A rule: each row times its own number."""
    return wide * factors[:, None]


FACTORS = torch.arange(6.0)


def test_a_derived_column_is_computed_where_its_rows_are_read(
    made: DataProtoRef, pair: Pair, fetches: list[int]
):
    wide = made.tensor("wide")
    fetches.clear()
    made.derive(Derived("wide", ("wide",), scaled, (FACTORS,)))
    assert pair[1].consume(made) == [
        (list(rows), float((wide * FACTORS[:, None])[list(rows)].sum()))
        for rows in (range(3), range(3, 6))
    ]
    assert sum(fetches) == 0
    # A rank is sent the numbers of its own rows.
    whole, part = (len(pickle.dumps(made.shard(parts, 0).layers)) for parts in (1, 6))
    assert part < whole
    assert torch.equal(made.tensor("wide"), wide * FACTORS[:, None])
    assert torch.equal(made.fetch(["wide"]).tensor("wide"), wide * FACTORS[:, None])


def test_derived_and_held_columns_lie_over_each_other_in_order(made: DataProtoRef):
    wide = made.tensor("wide")
    made.derive(Derived("twice", ("wide",), scaled, (torch.full((6,), 2.0),)))
    made.replace(DataProto.from_dict({"wide": torch.ones(6, WIDTH)}))
    assert made.is_held("wide") and not made.is_held("twice")
    made.derive(Derived("wide", ("wide",), scaled, (FACTORS,)))
    assert not made.is_held("wide")
    assert torch.equal(made.tensor("twice"), 2 * wide)
    assert torch.equal(made.tensor("wide"), torch.ones(6, WIDTH) * FACTORS[:, None])
    chosen = made.select(["twice"])
    assert chosen.keys == {"twice", "wide"}
    found = chosen.fetch(["twice"])
    assert found.batch is not None and set(found.batch.keys()) == {"twice"}
    assert torch.equal(found.tensor("twice"), 2 * wide)
    whole = DataProto.concat([made.shard(4, part).fetch() for part in range(3)])
    assert torch.equal(whole.tensor("twice"), 2 * wide)
    made.replace(DataProto.from_dict({"twice": torch.zeros(6, 1)}))
    assert made.tensor("twice").shape == (6, 1)


def test_what_cannot_be_derived_is_named(made: DataProtoRef):
    with pytest.raises(DataProtoError, match=r"x is derived from missing columns \['none'\]"):
        made.derive(Derived("x", ("none",), scaled, (FACTORS,)))
    with pytest.raises(DataProtoError, match=r"x is derived from numbers of \[5\] rows for 6"):
        made.derive(Derived("x", ("wide",), scaled, (FACTORS[:5],)))
