"""Union and concat: nothing is half done, equal things count as equal, and metadata is joined by
rule."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict

from rl_core.data_proto import DataProto, DataProtoError, union_numpy_dict, union_tensor_dict
from rl_core.data_proto.compare import same
from tests.data_proto.samples import identical, jagged, numbers_of, property_test, rows

NAN = float("nan")


def test_union_adds_columns_in_place():
    proto = rows(3)
    batch, columns = proto.batch, proto.non_tensor_batch
    other = DataProto.from_dict({"reward": torch.ones(3)}, {"uid": ["a", "b", "c"]}, {"seed": 5})
    assert proto.union(other) is proto
    assert proto.batch is batch
    assert proto.non_tensor_batch is columns
    assert batch["reward"].tolist() == [1, 1, 1]
    assert columns["uid"].tolist() == ["a", "b", "c"]
    assert proto.meta_info["seed"] == 5
    assert numbers_of(proto) == [0, 1, 2]


def test_union_accepts_shared_columns_that_are_equal():
    assert numbers_of(rows(3).union(rows(3))) == [0, 1, 2]


def test_union_with_an_empty_one_gives_the_other():
    assert numbers_of(DataProto().union(rows(3))) == [0, 1, 2]
    assert numbers_of(rows(3).union(DataProto())) == [0, 1, 2]


def test_union_leaves_a_locked_batch_as_it_is():
    proto = rows(3)
    locked = proto.batch.lock_()
    proto.union(DataProto.from_dict({"reward": torch.ones(3)}))
    assert "reward" in proto.batch.keys()  # noqa: SIM118
    assert "reward" not in locked.keys()  # noqa: SIM118


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            DataProto.from_dict({"new": torch.ones(3), "pair": torch.zeros(3, 2)}),
            r"'pair' differs: \[3, 2\] int64.*\[3, 2\] float32",
        ),
        (
            DataProto.from_dict({"new": torch.ones(3), "pair": torch.zeros(3, 4)}),
            r"'pair' differs: \[3, 2\].*\[3, 4\]",
        ),
        (
            DataProto.from_dict({"new": torch.ones(3), "ragged": torch.zeros(3, 4)}),
            r"'ragged' differs: \[3, 'j'\]",
        ),
        (DataProto.from_dict({"new": torch.ones(2)}), r"'new': \(2,\).*3 rows"),
        (
            DataProto.from_dict({"new": torch.ones(3)}, {"text": ["row 0", "row 1", "no"]}),
            r"'text' differs: \(3,\) object",
        ),
        (
            DataProto.from_dict({"new": torch.ones(3)}, {"number": np.arange(3.0)}),
            r"'number' differs.*int32.*float64",
        ),
        (DataProto.from_dict(non_tensors={"uid": ["a", "b"]}), r"'uid': \(2,\).*3 rows"),
        (
            DataProto.from_dict({"new": torch.ones(3)}, meta_info={"step": 4}),
            r"'step' differs: 3 and 4",
        ),
    ],
    ids=[
        "dtype",
        "shape",
        "kind",
        "tensor rows",
        "objects",
        "column dtype",
        "column rows",
        "metadata",
    ],
)
def test_a_failed_union_changes_nothing(other: DataProto, message: str):
    proto = rows(3)
    with pytest.raises(DataProtoError, match=message):
        proto.union(other)
    assert identical(proto, rows(3))
    assert list(proto.batch.keys()) == list(rows(3).batch.keys())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_nan_equals_nan_in_a_shared_tensor(dtype: torch.dtype):
    values = torch.tensor([1.0, NAN, float("inf")], dtype=dtype)
    proto = DataProto.from_dict({"a": values, "j": jagged([values, values[:1], values])})
    proto.union(
        DataProto.from_dict(
            {"a": values.clone(), "j": jagged([values.clone(), values[:1], values])}
        )
    )
    with pytest.raises(DataProtoError, match="'a' differs"):
        proto.union(DataProto.from_dict({"a": torch.tensor([NAN, 1.0, float("inf")], dtype=dtype)}))


def test_columns_of_dicts_holding_tensors_compare():
    def media(value: float) -> DataProto:
        image = {
            "pixel_values": torch.full((2, 3), value),
            "grid": [np.arange(3), {"deep": (torch.ones(1), NAN)}],
        }
        return DataProto.from_dict(non_tensors={"multi_modal_inputs": [image, {}]})

    media(1.0).union(media(1.0))
    media(NAN).union(media(NAN))
    with pytest.raises(DataProtoError, match="'multi_modal_inputs' differs"):
        media(1.0).union(media(2.0))


def test_structures_that_hold_themselves_compare():
    one, two, other = [1], [1], [1, 2]
    one.append(one)  # type: ignore[arg-type]
    two.append(two)  # type: ignore[arg-type]
    assert same(one, two)
    assert not same(one, other)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


@property_test
@given(values, values)
def test_equality_agrees_with_python_wherever_python_has_one(one, two):
    assert same(one, copy.deepcopy(one))
    if one == two:
        assert same(one, two)
    if "nan" not in repr((one, two)):
        assert same(one, two) == (one == two)


def test_union_of_tensordicts_is_in_place_and_whole_or_nothing():
    one, two = TensorDict({"a": torch.ones(2)}, [2]), TensorDict({"b": torch.ones(2)}, [2])
    assert union_tensor_dict(one, two) is one
    assert set(one.keys()) == {"a", "b"}
    with pytest.raises(DataProtoError, match="'a' differs"):
        union_tensor_dict(one, TensorDict({"c": torch.ones(2), "a": torch.zeros(2)}, [2]))
    with pytest.raises(DataProtoError, match=r"\[2\] and \[3\].*'c': \[3\]"):
        union_tensor_dict(one, TensorDict({"c": torch.ones(3)}, [3]))
    assert set(one.keys()) == {"a", "b"}


def test_union_of_numpy_dicts_is_in_place_and_whole_or_nothing():
    one = {"a": np.array([1.0, NAN])}
    assert (
        union_numpy_dict(one, {"a": np.array([1.0, NAN]), "b": np.array(["x", None], dtype=object)})
        is one
    )
    with pytest.raises(DataProtoError, match="'a' differs"):
        union_numpy_dict(one, {"c": np.ones(2), "a": np.ones(2)})
    with pytest.raises(DataProtoError, match="'c' is a list"):
        union_numpy_dict(one, {"c": [1, 2]})  # type: ignore[dict-item]
    assert set(one) == {"a", "b"}


def meta(**values: object) -> DataProto:
    return DataProto.from_dict({"a": torch.zeros(1)}, meta_info=dict(values))


def test_concat_of_nothing_is_a_clear_error():
    with pytest.raises(DataProtoError, match="nothing to join"):
        DataProto.concat([])


@pytest.mark.parametrize(
    ("given_metrics", "expected"),
    [
        ([{"loss": 1.0}, {"loss": 2.0}], {"loss": [1.0, 2.0]}),
        ([[{"loss": 1.0}, {"loss": 2.0}], [{"loss": 3.0}]], {"loss": [1.0, 2.0, 3.0]}),
        (
            [{"loss": 1.0}, {"loss": 2.0, "rank_1_only": 5}],
            {"loss": [1.0, 2.0], "rank_1_only": [5]},
        ),
        ([{"rank_0_only": 1}, {"rank_1_only": 2}], {"rank_0_only": [1], "rank_1_only": [2]}),
        ([None, {"loss": 2.0}], {"loss": [2.0]}),
    ],
)
def test_concat_merges_metrics_whose_keys_differ_by_rank(given_metrics, expected):
    joined = DataProto.concat([meta(metrics=metrics) for metrics in given_metrics])
    assert joined.meta_info == {"metrics": expected}


def test_concat_tolerates_meta_floats_within_a_millionth():
    joined = DataProto.concat(
        [
            meta(lr=0.1, deep={"x": [1.0]}, nan=NAN),
            meta(lr=0.1 + 1e-8, deep={"x": [1 + 1e-7]}, nan=NAN),
        ]
    )
    assert joined.meta_info["lr"] == 0.1
    for other in (meta(lr=0.10001), meta(lr=None), meta(lr="0.1")):
        with pytest.raises(
            DataProtoError, match=r"meta_info\['lr'\] differs: 0.1 and, in part 1, "
        ):
            DataProto.concat([meta(lr=0.1), other])


def test_concat_keeps_metadata_that_only_some_parts_have():
    parts = [meta(one=1, shared=torch.ones(2)), meta(two=[2], shared=torch.ones(2))]
    joined = DataProto.concat(parts)
    joined.meta_info["two"].append(3)
    assert joined.meta_info["one"] == 1
    assert parts[1].meta_info["two"] == [2]


@pytest.mark.parametrize(
    ("one", "two", "message"),
    [
        ({"a": torch.zeros(2)}, {"b": torch.zeros(2)}, r"\['a'\] and, in part 1, \['b'\]"),
        ({"a": torch.zeros(2)}, {}, r"\['a'\] and, in part 1, None"),
        (
            {"a": torch.zeros(2, 3)},
            {"a": torch.zeros(2, 4)},
            r"'a' differs: \[2, 3\] float32 and \[2, 4\] float32",
        ),
        (
            {"a": torch.zeros(1, 2)},
            {"a": jagged([torch.zeros(2)])},
            "'a' differs: jagged in some parts only",
        ),
    ],
)
def test_concat_names_the_columns_or_shapes_that_differ(one, two, message: str):
    with pytest.raises(DataProtoError, match=message):
        DataProto.concat([DataProto.from_dict(one), DataProto.from_dict(two)])


def test_concat_names_object_columns_that_differ():
    parts = [
        DataProto(non_tensor_batch={"x": np.zeros((1, 2))}),
        DataProto(non_tensor_batch={"x": np.zeros((1, 3))}),
    ]
    with pytest.raises(DataProtoError, match=r"'x' differs: \(1, 2\) float64 and \(1, 3\)"):
        DataProto.concat(parts)
    with pytest.raises(DataProtoError, match=r"\['x'\] and, in part 1, \[\]"):
        DataProto.concat([parts[0], DataProto()])
