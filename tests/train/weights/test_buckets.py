"""Weights in buckets: nothing is lost, no bucket is too large, and the checksum sees every changed
number."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.errors import WeightMismatch
from rl_core.models.export.checksums import Checksum, check_same, checksum
from rl_core.train.weights.buckets import Bucket, Piece, pack, unpack

shapes = st.lists(st.lists(st.integers(0, 7), min_size=0, max_size=3), min_size=0, max_size=6)
dtypes = st.sampled_from([torch.bfloat16, torch.float32])


def tensors(sizes: list[list[int]], dtype: torch.dtype, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        f"t{index}": torch.randn(size, generator=generator).to(dtype)
        for index, size in enumerate(sizes)
    }


@settings(deadline=None, max_examples=60)
@given(shapes, dtypes, st.integers(4, 200), st.integers(0, 99))
def test_buckets_carry_every_number_to_its_place(
    sizes: list[list[int]], dtype: torch.dtype, bucket_bytes: int, seed: int
):
    sent = tensors(sizes, dtype, seed)
    arrived = {name: torch.full_like(tensor, torch.nan) for name, tensor in sent.items()}
    buckets = list(pack(sent.items(), bucket_bytes))
    for bucket in buckets:
        unpack(bucket, arrived)
    assert all(torch.equal(arrived[name], tensor) for name, tensor in sent.items())
    assert all(bucket.values_N.nbytes <= bucket_bytes for bucket in buckets)
    # All but the last are as full as whole numbers allow.
    assert len({bucket.values_N.nbytes for bucket in buckets[:-1]}) <= 1


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 400), dtypes, st.data())
def test_the_checksum_sees_one_flipped_bit(
    num_numbers: int, dtype: torch.dtype, data: st.DataObject
):
    tensor = tensors([[num_numbers]], dtype, 0)["t0"]
    place = data.draw(st.integers(0, num_numbers - 1))
    bit = data.draw(st.integers(0, tensor.element_size() * 8 - 2))
    before = checksum(tensor)
    tensor.view(torch.int16 if dtype is torch.bfloat16 else torch.int32)[place] ^= 1 << bit
    assert checksum(tensor) != before


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 400), dtypes, st.data())
def test_the_checksum_sees_two_numbers_swapped(
    num_numbers: int, dtype: torch.dtype, data: st.DataObject
):
    tensor = torch.arange(num_numbers, dtype=torch.float32).to(dtype)
    one, two = data.draw(
        st.lists(st.integers(0, num_numbers - 1), min_size=2, max_size=2, unique=True)
    )
    swapped = tensor.clone()
    swapped[one], swapped[two] = tensor[two].clone(), tensor[one].clone()
    assert (checksum(swapped) == checksum(tensor)) is bool(tensor[one] == tensor[two])


def test_the_checksum_by_hand_and_over_several_chunks(monkeypatch: pytest.MonkeyPatch):
    # bfloat16 1.0 is 0x3f80 = 16256, 2.0 is 0x4000 = 16384.
    assert checksum(torch.tensor([[1.0, 2.0]], dtype=torch.bfloat16)) == Checksum(
        (1, 2), 16256 + 2 * 16384
    )
    tensor = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    whole = checksum(tensor)
    monkeypatch.setattr("rl_core.models.export.checksums.CHUNK", 7)
    assert checksum(tensor) == whole
    assert checksum(tensor.reshape(10, 100)) != whole


def test_a_difference_is_named():
    expected = {name: Checksum((2,), 1) for name in "abc"}
    check_same(expected, dict(expected), "engine")
    with pytest.raises(
        WeightMismatch, match=r"engine: 2 of 3 tensors differ .* first a, c; a: expected .*value=1"
    ):
        check_same(expected, {"a": Checksum((2,), 5), "b": Checksum((2,), 1)}, "engine")


@pytest.mark.parametrize(("name", "size"), [("a", "4 numbers"), ("b", "no such parameter")])
def test_a_bucket_that_does_not_fit_is_refused(name: str, size: str):
    with pytest.raises(
        WeightMismatch, match=rf"{name}\[2:6\] was sent, but the engine has .*{size}"
    ):
        unpack(Bucket((Piece(name, 2, 6),), torch.ones(4)), {"a": torch.zeros(4)})
