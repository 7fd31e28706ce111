"""DataProto keeps tensors, objects and metadata in step, whatever is done to its rows."""

import numpy as np
import pytest
import torch

from rl_core.data_proto import DataProto, DataProtoError, pad_rows


def rows(num_rows: int = 6, start: int = 0) -> DataProto:
    """Row i holds the numbers [i, 10 i], the text `row i` and a list of its own length."""
    numbers = torch.arange(start, start + num_rows)
    return DataProto.from_dict(
        {"pair": torch.stack([numbers, 10 * numbers], 1)},
        {"text": [f"row {i}" for i in numbers.tolist()], "item": [[i] * i for i in numbers.tolist()]},
        {"step": 3},
    )


def order(proto: DataProto) -> list[int]:
    """The original row numbers, after checking that every column agrees on them."""
    numbers = proto.tensor("pair")[:, 0].tolist()
    assert proto.tensor("pair")[:, 1].tolist() == [10 * i for i in numbers]
    assert proto.non_tensor_batch["text"].tolist() == [f"row {i}" for i in numbers]
    assert list(proto.non_tensor_batch["item"]) == [[i] * i for i in numbers]
    assert proto.meta_info == {"step": 3}
    return numbers


def test_lists_become_object_arrays_even_when_they_could_be_a_matrix():
    proto = DataProto.from_dict(non_tensors={"messages": [[1, 2], [3, 4], [5, 6]]})
    assert proto.non_tensor_batch["messages"].shape == (3,)
    assert proto.non_tensor_batch["messages"].dtype == object
    assert len(proto) == 3
    assert proto.batch is None


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (slice(1, 4), [1, 2, 3]),
        (slice(None, None, 2), [0, 2, 4]),
        (slice(-2, None), [4, 5]),
        ([5, 0, 0], [5, 0, 0]),
        ([], []),
        ([True, False, False, False, False, True], [0, 5]),
        (np.array([2, -1]), [2, 5]),
        (np.array([False, True, False, False, True, False]), [1, 4]),
        (torch.tensor([3, 1]), [3, 1]),
        (torch.tensor([False, False, True, True, False, False]), [2, 3]),
        (torch.zeros(6, dtype=torch.bool), []),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_indexing_takes_the_same_rows_of_every_column(index, expected):
    taken = rows()[index]
    assert order(taken) == expected
    assert len(taken) == len(expected)


def test_indexing_leaves_the_original_alone():
    proto = rows()
    _ = proto[[1, 2]]
    assert order(proto) == [0, 1, 2, 3, 4, 5]


def test_concat_undoes_chunk_and_split():
    proto = rows()
    assert [order(part) for part in proto.chunk(3)] == [[0, 1], [2, 3], [4, 5]]
    assert [order(part) for part in proto.split(4)] == [[0, 1, 2, 3], [4, 5]]
    assert order(DataProto.concat(proto.chunk(3))) == order(DataProto.concat(proto.split(4))) == order(proto)


def test_concat_appends_in_order():
    assert order(DataProto.concat([rows(2, start=4), rows(1), rows(2, start=2)])) == [4, 5, 0, 2, 3]


def test_concat_of_objects_alone():
    parts = [DataProto.from_dict(non_tensors={"item": [[1], [2, 3]]}), DataProto.from_dict(non_tensors={"item": [[]]})]
    assert list(DataProto.concat(parts).non_tensor_batch["item"]) == [[1], [2, 3], []]


@pytest.mark.parametrize("chunks", [4, 0, 7])
def test_rows_that_do_not_divide_are_not_chunked(chunks: int):
    with pytest.raises(DataProtoError, match=f"6 rows into {chunks} equal parts"):
        rows().chunk(chunks)


def test_repeat_keeps_siblings_adjacent_only_when_interleaved():
    assert order(rows(3).repeat(2)) == [0, 0, 1, 1, 2, 2]
    assert order(rows(3).repeat(2, interleave=False)) == [0, 1, 2, 0, 1, 2]


def test_reorder_is_in_place_and_its_inverse_restores():
    proto = rows()
    permutation = torch.tensor([3, 0, 5, 1, 4, 2])
    assert proto.reorder(permutation) is proto
    assert order(proto) == permutation.tolist()
    proto.reorder(permutation.argsort())
    assert order(proto) == [0, 1, 2, 3, 4, 5]


def test_select_keeps_only_the_named_columns():
    proto = rows()
    assert proto.batch is not None
    proto.batch["reward"] = torch.ones(6)
    chosen = proto.select(["reward"], ["text"])
    assert chosen.batch is not None
    assert list(chosen.batch.keys()) == ["reward"]
    assert list(chosen.non_tensor_batch) == ["text"]
    assert len(chosen) == 6
    assert proto.select(non_tensor_batch_keys=["text"]).batch is None
    with pytest.raises(KeyError, match="rewrad"):
        proto.select(["rewrad"])


def test_union_adds_columns_in_place():
    proto = rows(3)
    other = DataProto.from_dict({"reward": torch.tensor([1.0, 0.0, 1.0])}, {"uid": ["a", "b", "c"]}, {"seed": 5})
    assert proto.union(other) is proto
    assert proto.tensor("reward").tolist() == [1.0, 0.0, 1.0]
    assert proto.tensor("pair").shape == (3, 2)
    assert proto.non_tensor_batch["uid"].tolist() == ["a", "b", "c"]
    assert proto.meta_info == {"step": 3, "seed": 5}


def test_union_accepts_a_shared_column_that_is_equal():
    proto = rows(3)
    assert order(proto.union(rows(3))) == [0, 1, 2]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (DataProto.from_dict({"pair": torch.zeros(3, 2)}), r"'pair' differs"),
        (DataProto.from_dict({"pair": torch.zeros(3, 4)}), r"'pair' differs.*\[3, 2\].*\[3, 4\]"),
        (DataProto.from_dict({"reward": torch.zeros(2)}), r"'reward'.*2.*3 rows"),
        (DataProto.from_dict(non_tensors={"text": ["row 0", "row 1", "other"]}), r"'text' differs"),
        (DataProto.from_dict(non_tensors={"uid": ["a", "b"]}), r"'uid'.*\(2,\).*3 rows"),
    ],
    ids=["tensor values", "tensor shape", "tensor rows", "object values", "object rows"],
)
def test_union_refuses_a_contradiction_and_changes_nothing(other: DataProto, message: str):
    proto = rows(3)
    with pytest.raises(DataProtoError, match=message):
        proto.union(other)
    assert order(proto) == [0, 1, 2]
    assert proto.batch is not None
    assert (list(proto.batch.keys()), sorted(proto.non_tensor_batch)) == (["pair"], ["item", "text"])


def test_columns_of_different_length_are_refused_by_name_and_shape():
    with pytest.raises(DataProtoError, match=r"leading dimension.*'a': 2.*'b': 3"):
        DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(DataProtoError, match=r"\['text'\] has shape \(1,\), the batch has 2 rows"):
        DataProto.from_dict({"a": torch.zeros(2)}, {"text": ["only one"]})
    with pytest.raises(DataProtoError, match=r"\['text'\] has shape list"):
        DataProto(non_tensor_batch={"text": ["not", "an array"]})  # type: ignore[dict-item]


def test_concat_names_the_columns_or_shapes_that_differ():
    other = DataProto.from_dict({"reward": torch.zeros(2)})
    with pytest.raises(DataProtoError, match=r"concat.*'pair'.*'reward'"):
        DataProto.concat([rows(2), other])
    narrow, wide = DataProto.from_dict({"ids": torch.zeros(2, 3)}), DataProto.from_dict({"ids": torch.zeros(2, 4)})
    with pytest.raises(DataProtoError, match=r"concat: 'ids'.*\[2, 3\].*\[2, 4\]"):
        DataProto.concat([narrow, wide])


def test_a_missing_tensor_is_named_with_those_there_are():
    with pytest.raises(DataProtoError, match=r"no tensor 'rewards'.*\['pair'\]"):
        rows().tensor("rewards")
    with pytest.raises(DataProtoError, match=r"no tensor 'rewards'.*\[\]"):
        DataProto.from_dict(non_tensors={"item": [1]}).tensor("rewards")


def test_pad_rows_fills_on_the_asked_side():
    ragged = [torch.tensor([1, 2, 3]), torch.tensor([4]), torch.tensor([], dtype=torch.long)]
    assert pad_rows(ragged, 9).tolist() == [[1, 2, 3], [4, 9, 9], [9, 9, 9]]
    assert pad_rows(ragged, 9, left=True).tolist() == [[1, 2, 3], [9, 9, 4], [9, 9, 9]]
    assert pad_rows(ragged, 9, length=4).tolist() == [[1, 2, 3, 9], [4, 9, 9, 9], [9, 9, 9, 9]]
    assert pad_rows(ragged, 9, left=True, length=4).tolist() == [[9, 1, 2, 3], [9, 9, 9, 4], [9, 9, 9, 9]]
    assert pad_rows(ragged, 0).dtype == torch.long
    assert pad_rows([torch.tensor([0.5])], 0.0).dtype == torch.float32
