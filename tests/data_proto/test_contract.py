"""The door: what a batch accepts, what it refuses and how it says so."""

import copy

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_core.data_proto import (
    DataProto,
    DataProtoConfig,
    DataProtoError,
    DataProtoItem,
    DataProtoKeyError,
    list_of_dict_to_dict_of_list,
    pad_dataproto_to_divisor,
    pad_rows,
    unpad_dataproto,
)
from tests.data_proto.samples import Labelled, holding, numbers_of, rows


def test_everything_has_a_default():
    for proto in (
        DataProto(),
        DataProto(None, None, None),
        DataProto.from_dict(),
        DataProto(non_tensor_batch=None),
    ):  # type: ignore[arg-type]
        assert (proto.batch, proto.non_tensor_batch, proto.meta_info, len(proto)) == (
            None,
            {},
            {},
            0,
        )


def test_contract_errors_are_assertion_and_value_errors():
    for kind in (AssertionError, ValueError, DataProtoError):
        with pytest.raises(kind, match=r"leading dimension.*'a': 2.*'b': 3"):
            DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(3)})
    with pytest.raises(
        KeyError, match=r"no tensor 'rewards' in the batch; it has \['half', 'pair'"
    ):
        rows().tensor("rewards")
    assert issubclass(DataProtoKeyError, DataProtoError)


def test_lists_become_object_arrays_even_when_they_could_be_a_matrix():
    column = DataProto.from_dict(
        non_tensors={"messages": [[1, 2], [3, 4], [5, 6]]}
    ).non_tensor_batch["messages"]
    assert (column.shape, column.dtype, column[0]) == ((3,), object, [1, 2])


def test_from_dict_leaves_the_callers_dicts_alone():
    tensors, objects, meta = {"a": torch.zeros(2)}, {"text": ["x", "y"]}, {"step": 1}
    proto = DataProto.from_dict(tensors, objects, meta, auto_padding=True)
    proto.union(DataProto.from_dict({"b": torch.ones(2)}, {"more": [1, 2]}, {"other": 1}))
    assert list(tensors) == ["a"]
    assert objects == {"text": ["x", "y"]}
    assert meta == {"step": 1}


def test_from_single_dict_sorts_tensors_from_arrays():
    proto = Labelled.from_single_dict(
        {"a": torch.zeros(2), "n": np.arange(2)}, {"step": 1}, auto_padding=True
    )
    assert list(proto.batch.keys()) == ["a"]
    assert proto.non_tensor_batch["n"].dtype == np.int64
    assert proto.is_padding_enabled()
    assert type(proto) is Labelled
    with pytest.raises(DataProtoError, match="'x' is a list"):
        DataProto.from_single_dict({"x": [1, 2]})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DataProto.from_dict({"a": torch.zeros(2)}, {"text": ["one"]}),
            r"\['text'\] has shape \(1,\).*2 rows",
        ),
        (
            lambda: DataProto(non_tensor_batch={"text": ["no", "array"]}),
            r"\['text'\] has shape list",
        ),
        (lambda: DataProto(non_tensor_batch={"text": np.array(1)}), r"\['text'\] has shape \(\)"),
        (lambda: DataProto(batch={"a": torch.zeros(2)}), "batch is a dict"),
        (
            lambda: DataProto(TensorDict({"a": torch.zeros(2, 3)}, [2, 3])),
            r"one batch dimension, not \[2, 3\]",
        ),
        (
            lambda: DataProto.from_dict({"a": torch.zeros(2, 3)}, num_batch_dims=2),
            "one batch dimension, not 2",
        ),
        (lambda: DataProto.from_dict({"a": torch.tensor(1)}), r"\['a'\] has shape \[\]"),
        (lambda: DataProto.from_dict({"a": [1, 2]}), r"\['a'\] is a list"),
        (lambda: DataProto.from_dict(non_tensors={"a": 3}), r"\['a'\] is one int"),
        (lambda: rows().chunk(4), "6 rows into 4 equal parts"),
        (lambda: rows().chunk(0), "6 rows into 0 equal parts"),
        (lambda: rows().split(0), "at least 1 row"),
        (lambda: rows().repeat(-1), "-1 times"),
        (lambda: rows().sample_level_repeat([1, 2]), "for each of 6 rows"),
        (lambda: rows().sample_level_repeat([0.5] * 6), "integer for each"),
        (lambda: rows().unfold_column_chunks(3, ["pair"]), r"'pair': \[6, 2\] int64"),
        (lambda: rows().unfold_column_chunks(2, ["ragged"]), r"'ragged': row lengths \[0, 1, 2, 3"),
        (lambda: rows().padding(1, "middle"), "'middle'"),
        (lambda: rows(0).padding(1), "cannot pad 0 rows"),
        (lambda: rows().make_iterator(4, 1), "6 rows do not divide into mini-batches of 4"),
        (lambda: rows().make_iterator(2, 1, dataloader_kwargs={"shufle": True}), r"\['shufle'\]"),
        (lambda: rows().rename(["pair", "half"], ["one"]), r"2 old names.*1 new"),
        (lambda: rows().rename("pair", "half"), r"the names \['half', 'half'"),
        (lambda: rows().rename("pear", "pair"), "no tensor 'pear'"),
        (lambda: rows().pop(["pear"]), "no tensor 'pear'"),
        (lambda: rows().select(["pear"]), "no tensor 'pear'"),
        (lambda: rows()[torch.zeros(2, 2, dtype=torch.long)], r"shape \(2, 2\)"),
        (lambda: rows()[[True, False]], r"mask of shape \(2,\).*6 rows"),
        (lambda: rows()[[0.5]], "not by float64"),
        (lambda: pad_dataproto_to_divisor(rows(), 0), "at least 1, not 0"),
        (lambda: unpad_dataproto(rows(2), 3), "3 padding rows off 2 rows"),
        (
            lambda: list_of_dict_to_dict_of_list([{"a": 1}, {"a": 1, "b": 2}]),
            r"row 1 has keys \['a', 'b'\]",
        ),
        (lambda: setattr(DataProtoConfig, "auto_padding", 1), "True or False, not 1"),
    ],
)
def test_what_breaks_the_contract_is_named(make, message: str):
    with pytest.raises(DataProtoError, match=message):
        make()


@pytest.mark.parametrize(
    "take", [lambda: rows()[6], lambda: rows()[-7], lambda: rows()[[0, 6]], lambda: rows()[[-7]]]
)
def test_a_row_that_is_not_there_is_an_index_error(take):
    with pytest.raises(IndexError, match=r"row (6|-7) is not among the 6 rows"):
        take()


def test_other_kinds_of_index_and_name_are_type_errors():
    with pytest.raises(TypeError, match="not by a str"):
        rows()["pair"]
    with pytest.raises(TypeError, match="not by a tuple"):
        rows()[0, 1]
    with pytest.raises(TypeError, match="not a tuple"):
        rows().rename(("pair",), ("couple",))  # type: ignore[arg-type]


def test_a_failed_pop_or_rename_changes_nothing():
    proto = rows()
    for attempt in (
        lambda: proto.pop(["pair"], ["absent"]),
        lambda: proto.pop(["pair"], ["text"], ["absent"]),
        lambda: proto.rename(["pair", "absent"], ["couple", "other"]),
    ):
        with pytest.raises(DataProtoKeyError, match="'absent'"):
            attempt()
    assert numbers_of(proto) == [0, 1, 2, 3, 4, 5]


def test_iterating_gives_the_rows_as_items():
    items = list(rows(3))
    assert [item.batch["pair"][0].item() for item in items] == [0, 1, 2]
    assert all(isinstance(item, DataProtoItem) for item in items)


def test_select_by_default_keeps_all_and_shares_no_container():
    proto = rows(3)
    chosen = proto.select()
    assert numbers_of(chosen) == [0, 1, 2]
    chosen.batch["extra"] = torch.ones(3)
    chosen.non_tensor_batch["extra"] = np.ones(3)
    assert "extra" not in proto.batch.keys()  # noqa: SIM118
    assert "extra" not in proto.non_tensor_batch
    assert proto.select(batch_keys=[]).batch.is_empty()
    deep = proto.select(non_tensor_batch_keys=["media"], deepcopy=True)
    deep.non_tensor_batch["media"][0]["pixels"].fill_(9)
    assert numbers_of(proto) == [0, 1, 2]


def test_consecutive_rows_share_memory_and_clone_does_not():
    proto = rows(4)
    pair = proto.tensor("pair")
    for view in (proto[1:3], proto.chunk(2)[1], proto.split(3)[0], next(proto.make_iterator(2, 1))):
        assert view.tensor("pair").untyped_storage().data_ptr() == pair.untyped_storage().data_ptr()
    for copied in (proto.clone(), copy.deepcopy(proto), proto[[1, 2]]):
        assert (
            copied.tensor("pair").untyped_storage().data_ptr() != pair.untyped_storage().data_ptr()
        )


def test_padding_is_enabled_by_batch_or_for_the_process():
    proto = holding([0, 1, 2, 3, 4])
    assert not proto.is_padding_enabled()
    DataProtoConfig.auto_padding = True
    try:
        assert proto.is_padding_enabled()
        assert [numbers_of(part) for part in proto.chunk(4)] == [[0, 1], [2, 3], [4, 4], [4, 4]]
    finally:
        DataProtoConfig.auto_padding = False
    assert DataProto.from_dict({"a": torch.zeros(5)}, auto_padding=True).is_padding_enabled()


def test_a_batch_without_rows_is_padded_by_nothing(caplog: pytest.LogCaptureFixture):
    padded, size = pad_dataproto_to_divisor(rows(0), 4)
    assert (len(padded), size) == (0, 0)
    assert "without rows" in caplog.text


def test_sampler_generator_and_drop_last_of_a_data_loader_are_honoured():
    proto = rows(5)
    chosen = proto.make_iterator(
        2, 1, dataloader_kwargs={"sampler": [4, 3, 2], "drop_last": True, "num_workers": 2}
    )
    assert [numbers_of(one) for one in chosen] == [[4, 3]]
    seeded = [
        [numbers_of(one) for one in proto.make_iterator(1, 1, **options)]
        for options in (
            {"seed": 5},
            {"dataloader_kwargs": {"shuffle": True, "generator": torch.Generator().manual_seed(5)}},
        )
    ]
    assert seeded[0] == seeded[1]


def test_the_iterator_works_without_tensors_and_keeps_the_class():
    proto = Labelled.from_dict(
        non_tensors={"n": np.arange(4, dtype=np.int16), "text": list("abcd")}
    )
    parts = list(proto.make_iterator(2, 1, seed=0))
    assert {type(part) for part in parts} == {Labelled}
    assert parts[0].non_tensor_batch["n"].dtype == np.int16
    assert sorted(text for part in parts for text in part.non_tensor_batch["text"]) == list("abcd")


def test_sizes_and_contents_in_words(capsys: pytest.CaptureFixture[str]):
    proto = DataProto.from_dict(
        {"ids": torch.zeros(2**20, 2, dtype=torch.int64)},
        {"n": np.zeros(2**20)},
        {"lr": 0.1, "tags": ["a"], "d": {"k": (1, "x")}},
    )
    proto.print_size("rollout")
    assert (
        capsys.readouterr().out
        == "rollout, Size of tensordict: 0.015625 GB, size of non_tensor_batch: 0.0078125 GB\n"
    )
    text = proto.get_data_info()
    assert "  ids: (1048576, 2) (torch.int64) cpu" in text
    assert "  n: ndarray(1048576,) (float64)" in text
    assert "  tags: list[str]\n  d: dict[str: tuple(int, str)]" in text
    assert "  ragged: (3, j) (torch.int64) cpu" in rows(3).get_data_info()
    assert DataProto().get_data_info() == "batch\nnon_tensor_batch\nmeta_info"
    rows(3).print_size()
    assert "Size of tensordict" in capsys.readouterr().out


def test_to_moves_in_place_and_returns_self():
    proto = rows(3)
    assert proto.to("cpu") is proto
    assert proto.batch.device == torch.device("cpu")
    assert numbers_of(proto[1:]) == [1, 2]
    assert proto[1:].batch.device == torch.device("cpu")


def test_the_batch_is_a_whole_tensordict():
    batch = DataProto(
        TensorDict({"zeros": torch.zeros(6, 3, 4), "ones": torch.ones(6, 5)}, [6])
    ).batch
    assert isinstance(batch, TensorDict)
    batch["twos"] = 2 * batch["ones"]
    assert {name: list(value.shape) for name, value in batch[:1].items()} == {
        "zeros": [1, 3, 4],
        "ones": [1, 5],
        "twos": [1, 5],
    }
    assert batch.to("cpu").device == torch.device("cpu")
    assert batch.reshape(2, 3)["ones"].shape == (2, 3, 5)


def test_a_name_used_twice_cannot_become_a_tensordict():
    with pytest.raises(DataProtoError, match=r"\['pair'\] are in more than one"):
        rows(2).union(DataProto(non_tensor_batch={"pair": np.arange(2)})).to_tensordict()


def test_pad_rows_fills_on_the_asked_side():
    ragged = [torch.tensor([1, 2, 3]), torch.tensor([4]), torch.tensor([], dtype=torch.long)]
    assert pad_rows(ragged, 9).tolist() == [[1, 2, 3], [4, 9, 9], [9, 9, 9]]
    assert pad_rows(ragged, 9, left=True).tolist() == [[1, 2, 3], [9, 9, 4], [9, 9, 9]]
    assert pad_rows(ragged, 9, length=4).tolist() == [[1, 2, 3, 9], [4, 9, 9, 9], [9, 9, 9, 9]]
    assert pad_rows(ragged, 9, left=True, length=4).tolist() == [
        [9, 1, 2, 3],
        [9, 9, 9, 4],
        [9, 9, 9, 9],
    ]
    assert pad_rows(ragged, 0).dtype == torch.long
    assert pad_rows([torch.tensor([0.5])], 0.0).dtype == torch.float32
