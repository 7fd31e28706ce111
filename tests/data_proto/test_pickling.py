"""What a pickle carries: every dtype and layout, the tensors' own memory, and sharing."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from rl_core.data_proto import (
    DataProto,
    DataProtoError,
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)
from rl_core.data_proto.compare import same
from tests.data_proto.samples import holding, identical, jagged, numbers_of, rows

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def split_pickle(value: object) -> tuple[bytes, list[pickle.PickleBuffer]]:
    buffers: list[pickle.PickleBuffer] = []
    return pickle.dumps(value, protocol=5, buffer_callback=buffers.append), buffers


def read_only(buffers: list[pickle.PickleBuffer]) -> list[memoryview]:
    """As an object store hands them out."""
    return [memoryview(buffer.raw().tobytes()) for buffer in buffers]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 2), (3,), (0, 4), (3, 0), (0,)], ids=str)
def test_every_dtype_and_shape_survives_every_way(dtype: torch.dtype, shape: tuple[int, ...]):
    tensor = torch.arange(int(np.prod(shape))).view(shape).to(dtype)
    ways = [deserialize_single_tensor(serialize_single_tensor(tensor))]
    proto = DataProto.from_dict({"a": tensor})
    ways += [pickle.loads(pickle.dumps(proto, protocol)).tensor("a") for protocol in (3, 4, 5)]
    stream, buffers = split_pickle(proto)
    ways += [
        pickle.loads(stream, buffers=buffers).tensor("a"),
        pickle.loads(stream, buffers=read_only(buffers)).tensor("a"),
    ]
    for again in ways:
        assert (again.dtype, again.shape) == (dtype, tensor.shape)
        assert torch.equal(
            again.contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8)
        )


def test_tensors_leave_as_their_own_memory():
    proto = rows(4)
    stream, buffers = split_pickle(proto)
    again = pickle.loads(stream, buffers=buffers)
    assert again.tensor("pair").data_ptr() == proto.tensor("pair").data_ptr()
    assert again.tensor("ragged").values().data_ptr() == proto.tensor("ragged").values().data_ptr()
    pixels = again.non_tensor_batch["media"][0]["pixels"]
    assert pixels.data_ptr() == proto.non_tensor_batch["media"][0]["pixels"].data_ptr()


def test_a_part_carries_only_its_own_rows():
    whole = DataProto.from_dict({"a": torch.zeros(1000, 1000)})
    assert len(pickle.dumps(whole.chunk(100)[3], protocol=5)) < 2 * whole.tensor("a").nbytes / 100


def test_read_only_buffers_give_tensors_without_a_warning_or_a_copy():
    stream, buffers = split_pickle(rows(4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = read_only(buffers)
        again = pickle.loads(stream, buffers=given)
        assert numbers_of(again) == [0, 1, 2, 3]
    addresses = {np.frombuffer(memory, np.uint8).ctypes.data for memory in given if memory.nbytes}
    assert again.tensor("pair").data_ptr() in addresses
    assert again.clone().tensor("pair").data_ptr() not in addresses


@pytest.mark.parametrize("protocol", [3, 4, 5])
def test_what_was_unpickled_can_be_written(protocol: int):
    again = pickle.loads(pickle.dumps(rows(4), protocol))
    again.tensor("pair").add_(1)
    again.batch["new"] = torch.ones(4)
    assert again.tensor("pair")[0].tolist() == [1, 1]


def test_siblings_that_share_an_image_share_it_afterwards():
    image, text = torch.ones(3, 3), {"pixels": torch.ones(2)}
    proto = DataProto.from_dict(
        non_tensors={"image": [image, image], "dict": [text, text], "both": [[image], (image,)]},
        meta_info={"image": image},
    )
    again = pickle.loads(pickle.dumps(proto, protocol=5))
    images = again.non_tensor_batch["image"]
    assert (
        images[0] is images[1] is again.meta_info["image"] is again.non_tensor_batch["both"][0][0]
    )
    assert again.non_tensor_batch["both"][1][0] is images[0]
    assert again.non_tensor_batch["dict"][0] is again.non_tensor_batch["dict"][1]


def test_an_object_that_holds_itself_can_be_pickled():
    knot: list[object] = [torch.ones(2)]
    knot.append(knot)
    again = pickle.loads(
        pickle.dumps(DataProto.from_dict(non_tensors={"x": [knot, 1]}), protocol=5)
    )
    assert torch.equal(again.non_tensor_batch["x"][0][0], torch.ones(2))
    assert isinstance(again.non_tensor_batch["x"][0][1], list)


def test_memory_order_gradients_and_nesting_do_not_matter():
    weight = torch.randn(3, 4, requires_grad=True)
    tensors = {
        "transposed": torch.arange(6).view(2, 3).t(),
        "expanded": torch.ones(1, 2).expand(3, 2),
        "strided": torch.arange(12).view(3, 4)[:, ::2],
        "conjugate": torch.randn(3, 2, dtype=torch.complex64).conj(),
        "graph": weight * 2,
        "sparse": torch.eye(3).to_sparse(),
    }
    batch = TensorDict(
        {**tensors, "inner": TensorDict({"deep": torch.arange(3)}, [3])}, [3], device="cpu"
    )
    again = pickle.loads(pickle.dumps(DataProto(batch), protocol=5))
    assert again.batch.device == torch.device("cpu")
    assert torch.equal(again.batch["inner", "deep"], torch.arange(3))
    for key, tensor in tensors.items():
        assert torch.equal(again.tensor(key).to_dense(), tensor.to_dense()), key
    assert not again.tensor("graph").requires_grad


def test_a_device_that_is_not_here_becomes_the_cpu():
    from rl_core.data_proto.pickling import tensor_from_bytes

    if torch.cuda.device_count() > 7:
        pytest.skip("this machine has a cuda:7")
    assert tensor_from_bytes("int64", (1,), bytearray(8), "cuda:7").device.type == "cpu"


def test_state_can_be_handed_over_without_a_pickle():
    again = DataProto()
    again.__setstate__(rows(3).__getstate__())
    assert numbers_of(again) == [0, 1, 2]


def test_saved_batches_come_back_and_damaged_files_are_named(tmp_path):
    path = tmp_path / "batch.pkl"
    rows(4).save_to_disk(path)
    assert identical(DataProto.load_from_disk(str(path)), rows(4))
    assert list(tmp_path.iterdir()) == [path]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataProtoError, match=r"batch\.pkl is not a whole DataProto"):
        DataProto.load_from_disk(path)
    path.write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(DataProtoError, match=r"batch\.pkl holds a dict"):
        DataProto.load_from_disk(path)


def test_serialised_forms_are_plain_and_refuse_what_they_are_not():
    nested = jagged([torch.ones(2), torch.ones(0)])
    size, device, items = serialize_tensordict(
        TensorDict({"n": nested, "a": torch.ones(2, 3)}, [2], device="cpu")
    )
    assert (size, device, items["a"][:2], items["n"][0]) == (
        (2,),
        "cpu",
        ("float32", (2, 3)),
        "jagged",
    )
    plain = {"a": ("float32", (2, 3), bytes(items["a"][2]))}
    assert same(deserialize_tensordict((size, device, plain))["a"], torch.ones(2, 3))
    with pytest.raises(DataProtoError, match="'a': a serialised tensor is"):
        deserialize_tensordict((size, device, {"a": (1,)}))
    with pytest.raises(DataProtoError, match="'inner' is a TensorDict"):
        serialize_tensordict(TensorDict({"inner": TensorDict({}, [2])}, [2]))


def test_jagged_columns_with_holes_or_transposed_are_made_whole_or_refused():
    nested = torch.nested.narrow(
        torch.arange(12).view(3, 4),
        1,
        torch.tensor([0, 1, 2]),
        torch.tensor([2, 0, 1]),
        layout=torch.jagged,
    )
    proto = DataProto.from_dict({"a": nested})
    for taken in (
        proto[[2, 0]],
        pickle.loads(pickle.dumps(proto))[[2, 0]],
        DataProto.concat([proto[2:], proto[:1]]),
    ):
        assert [row.tolist() for row in taken.tensor("a").unbind()] == [[10], [0, 1]]
    turned = holding([1, 2]).tensor("ragged_float").transpose(1, 2)
    with pytest.raises(DataProtoError, match="ragged in dimension 1, not 2"):
        DataProto.from_dict({"a": turned})[[0]]
