"""An engine that is sent the changes alone holds the trainer's weights, bit for bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_core.train.weights.buckets import SentWeights, unpack
from rl_core.train.weights.changes import Changes

dtypes = st.sampled_from([torch.bfloat16, torch.float32])


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=4),
    dtypes,
    st.sampled_from([0.0, 0.0005, 0.01, 0.4, 1.0]),
    st.integers(4, 5000),
    st.integers(0, 99),
)
def test_the_engine_follows_whatever_changes(
    sizes: list[int], dtype: torch.dtype, share: float, bucket_bytes: int, seed: int
):
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for number, size in enumerate(sizes):
        weights[f"w{number}"] = torch.randn(size, generator=generator).to(dtype)
    engine = {name: torch.full_like(one, 7) for name, one in weights.items()}
    sender = SentWeights()
    for _ in range(3):
        for bucket in sender.changed(weights.items(), bucket_bytes):
            unpack(bucket, engine)
        assert all(torch.equal(engine[name], one) for name, one in weights.items())
        for one in weights.values():
            moved = torch.rand(len(one), generator=generator) < share
            one[moved] += torch.randn(int(moved.sum()), generator=generator).to(dtype)


@pytest.mark.parametrize("gap", [0, 1, 254, 255, 256, 509, 510, 511, 70_000])
def test_a_gap_of_any_length_is_kept(gap: int):
    old = torch.zeros(gap + 3, dtype=torch.bfloat16)
    new, engine = old.clone(), old.clone()
    new[gap] = new[-1] = 1
    sender = SentWeights()
    list(sender.changed([("w", old)], 2**20))
    (bucket,) = sender.changed([("w", new)], 2**20)
    unpack(bucket, {"w": engine})
    assert torch.equal(engine, new)


def test_few_changes_are_few_bytes_and_bits_count():
    old = torch.ones(100_000, dtype=torch.bfloat16)
    old[5] = 0.0
    new = old.clone()
    new[5], new[77], new[99_999] = -0.0, torch.nan, 2.0
    sender, engine = SentWeights(), old.clone()
    list(sender.changed([("w", old)], 2**20))
    (bucket,) = sender.changed([("w", new)], 2**20)
    assert bucket.values_N.nbytes < 500
    unpack(bucket, {"w": engine})
    assert torch.equal(engine.view(torch.int16), new.view(torch.int16))
    assert not list(sender.changed([("w", new)], 2**20))


def test_what_was_forgotten_is_sent_whole():
    weight = torch.ones(100)
    sender = SentWeights()
    list(sender.changed([("w", weight)], 2**20))
    sender.forget()
    (bucket,) = sender.changed([("w", weight)], 2**20)
    assert [isinstance(one, Changes) and one.num_gap_bytes for one in bucket.pieces] == [0]
    assert bucket.values_N.nbytes == weight.nbytes
