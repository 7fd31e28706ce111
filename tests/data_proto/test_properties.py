"""What holds for every batch: each method against the same thing done to a list of row numbers."""

import copy
import io
import pickle
from itertools import chain

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_core.data_proto import (
    DataProto,
    collate_fn,
    deserialize_tensordict,
    fold_batch_dim,
    pad_dataproto_to_divisor,
    serialize_tensordict,
    unfold_batch_dim,
    unpad_dataproto,
)
from rl_core.data_proto.compare import same
from tests.data_proto.samples import (
    NUMBERS,
    SOME_NUMBERS,
    Labelled,
    batch_and_index,
    holding,
    identical,
    numbers_of,
    property_test,
)


@property_test
@given(batch_and_index())
def test_every_index_chooses_the_rows_a_list_would(case):
    numbers, index, expected = case
    proto = holding(numbers)
    assert numbers_of(proto[index]) == expected
    assert numbers_of(proto) == numbers


@property_test
@given(SOME_NUMBERS, st.data())
def test_an_integer_gives_that_row(numbers, data):
    row = data.draw(st.integers(-len(numbers), len(numbers) - 1))
    item = holding(numbers)[row]
    assert item.batch["pair"].tolist() == [numbers[row], 10 * numbers[row]]
    assert item.batch["ragged"].tolist() == [numbers[row]] * (numbers[row] % 4)
    assert item.non_tensor_batch["number"] == numbers[row]
    assert item.meta_info["step"] == 3


@property_test
@given(
    SOME_NUMBERS,
    st.integers(-15, 15) | st.none(),
    st.integers(-15, 15) | st.none(),
    st.sampled_from([None, 1, 2, -1]),
)
def test_slice_is_that_of_a_list(numbers, start, end, step):
    assert numbers_of(holding(numbers).slice(start, end, step)) == numbers[start:end:step]


@property_test
@given(NUMBERS, st.integers(1, 5))
def test_split_cuts_and_concat_joins(numbers, size):
    parts = holding(numbers).split(size)
    assert [numbers_of(part) for part in parts] == [
        numbers[i : i + size] for i in range(0, len(numbers), size)
    ]
    if parts:
        assert identical(DataProto.concat(parts), holding(numbers))


@property_test
@given(NUMBERS, st.integers(1, 6))
def test_chunk_gives_as_many_equal_parts_as_asked(numbers, chunks):
    numbers = numbers[: len(numbers) - len(numbers) % chunks]
    parts = holding(numbers).chunk(chunks)
    assert {len(part) for part in parts} == {len(numbers) // chunks}
    assert len(parts) == chunks
    assert [number for part in parts for number in numbers_of(part)] == numbers


@property_test
@given(SOME_NUMBERS, st.integers(1, 8))
def test_auto_padded_chunks_are_equal_and_begin_with_every_row(numbers, chunks):
    proto = holding(numbers)
    proto.meta_info |= DataProto.from_dict(auto_padding=True).meta_info
    parts = proto.chunk(chunks)
    joined = [number for part in parts for number in numbers_of(part)]
    assert len(parts) == chunks
    assert len({len(part) for part in parts}) == 1
    assert joined == numbers + [numbers[-1]] * (-len(numbers) % chunks)
    assert numbers_of(proto) == numbers


@property_test
@given(st.lists(NUMBERS, min_size=1, max_size=4))
def test_concat_appends_in_order(lists):
    assert numbers_of(DataProto.concat([holding(numbers) for numbers in lists])) == list(
        chain(*lists)
    )


@property_test
@given(NUMBERS, st.integers(0, 3), st.booleans())
def test_repeat_is_that_of_numpy(numbers, times, interleave):
    expected = np.repeat(numbers, times) if interleave else np.tile(numbers, times)
    assert numbers_of(holding(numbers).repeat(times, interleave)) == expected.tolist()


@property_test
@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), max_size=8),
    st.sampled_from([list, tuple, np.array, torch.tensor]),
)
def test_sample_level_repeat_repeats_each_row_its_own_times(pairs, kind):
    numbers, times = [number for number, _ in pairs], [count for _, count in pairs]
    expected = [number for number, count in pairs for _ in range(count)]
    given_times = kind(times) if pairs else []
    assert numbers_of(holding(numbers).sample_level_repeat(given_times)) == expected


@property_test
@given(NUMBERS, st.randoms(use_true_random=False))
def test_reorder_is_in_place_and_its_inverse_restores(numbers, random):
    proto = holding(numbers)
    order = list(range(len(numbers)))
    random.shuffle(order)
    assert proto.reorder(torch.tensor(order, dtype=torch.long)) is proto
    assert numbers_of(proto) == [numbers[row] for row in order]
    assert numbers_of(proto.reorder(np.argsort(order).astype(int))) == numbers


@property_test
@given(SOME_NUMBERS, st.integers(0, 5), st.sampled_from(["", "first", "last"]))
def test_padding_appends_one_row_in_place(numbers, size, candidate):
    proto = holding(numbers)
    proto.padding(size, candidate)
    assert numbers_of(proto) == numbers + [numbers[0 if candidate == "first" else -1]] * size


@property_test
@given(SOME_NUMBERS, st.integers(1, 30))
def test_unpad_undoes_pad_to_divisor(numbers, divisor):
    proto = holding(numbers)
    padded, size = pad_dataproto_to_divisor(proto, divisor)
    assert len(padded) % divisor == 0
    assert 0 <= size < divisor
    assert numbers_of(padded) == [numbers[row % len(numbers)] for row in range(len(numbers) + size)]
    assert numbers_of(unpad_dataproto(padded, size)) == numbers


@property_test
@given(SOME_NUMBERS, st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**31), st.booleans())
def test_every_epoch_has_every_row_once_and_a_seed_repeats_it(numbers, size, epochs, seed, shuffle):
    numbers = numbers[: len(numbers) - len(numbers) % size]
    options = {"shuffle": shuffle}
    runs = [
        [numbers_of(one) for one in holding(numbers).make_iterator(size, epochs, seed, options)]
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert all(len(one) == size for one in runs[0])
    per_epoch = len(numbers) // size
    for epoch in range(epochs):
        seen = list(chain(*runs[0][epoch * per_epoch : (epoch + 1) * per_epoch]))
        assert (sorted(seen) == sorted(numbers)) if shuffle else (seen == numbers)


COLUMNS = ["pair", "half", "ragged", "ragged_float"]


@property_test
@given(
    SOME_NUMBERS,
    st.sets(st.sampled_from(COLUMNS)),
    st.sets(st.sampled_from(["text", "number", "media"])),
)
def test_union_of_what_pop_took_and_what_it_left_is_the_whole(numbers, tensors, columns):
    proto = holding(numbers)
    taken = proto.pop(sorted(tensors), sorted(columns), ["step"])
    assert set(proto.batch.keys()) == set(COLUMNS) - tensors
    assert set(taken.non_tensor_batch) == columns
    assert "step" not in proto.meta_info
    assert proto.union(taken) is proto
    assert numbers_of(proto) == numbers
    assert proto.meta_info == holding(numbers).meta_info


@property_test
@given(
    SOME_NUMBERS,
    st.sets(st.sampled_from(COLUMNS)),
    st.sets(st.sampled_from(["text", "number", "absent"])),
    st.booleans(),
)
def test_select_keeps_the_named_columns_of_every_row(numbers, tensors, columns, deepcopy):
    proto = holding(numbers)
    chosen = proto.select(sorted(tensors), sorted(columns), ["step", "absent"], deepcopy)
    assert set(chosen.batch.keys()) == tensors
    assert set(chosen.non_tensor_batch) == columns - {"absent"}
    assert chosen.meta_info == {"step": 3}
    assert len(chosen) == len(proto)
    assert numbers_of(proto.select().union(chosen)) == numbers


@property_test
@given(st.permutations(COLUMNS))
def test_rename_and_back(names):
    proto = holding([1, 2, 3])
    assert proto.rename(COLUMNS, list(names)) is proto
    assert list(proto.batch.keys()) == list(names)
    assert numbers_of(proto.rename(list(names), COLUMNS)) == [1, 2, 3]


@property_test
@given(NUMBERS)
def test_tensordict_and_back_keeps_everything(numbers):
    proto = holding(numbers)
    assert identical(DataProto.from_tensordict(proto.to_tensordict()), proto)


@property_test
@given(SOME_NUMBERS)
def test_collating_single_rows_gives_the_batch(numbers):
    proto = holding(numbers)
    assert numbers_of(collate_fn([proto[row] for row in range(len(proto))])) == numbers


@property_test
@given(st.integers(0, 3), st.integers(1, 4))
def test_unfold_undoes_fold(size, groups):
    proto = holding(list(range(size * groups))).select(["pair", "half"])
    folded = fold_batch_dim(proto, groups)
    assert len(folded) == groups
    assert folded.tensor("pair").shape == (groups, size, 2)
    assert folded.non_tensor_batch["text"].shape == (groups, size)
    assert identical(unfold_batch_dim(folded), proto)
    assert proto.non_tensor_batch["text"].shape == (size * groups,)


@property_test
@given(st.integers(0, 4), st.integers(1, 3), st.integers(1, 3))
def test_unfold_column_chunks_turns_columns_to_rows(num_rows, chunks, width):
    numbers = list(range(num_rows))
    table = torch.arange(num_rows * chunks * width).view(num_rows, chunks * width)
    lengths = torch.tensor([chunks * (row % 3) for row in numbers], dtype=torch.long)
    flat = torch.arange(int(lengths.sum()))
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    proto = holding(numbers)
    proto.union(
        DataProto.from_dict(
            {"table": table, "long": torch.nested.nested_tensor_from_jagged(flat, offsets)},
            {"matrix": table.numpy(), "lists": [[row] * chunks * (row + 1) for row in numbers]},
        )
    )
    unfolded = proto.unfold_column_chunks(chunks, ["table", "long", "matrix", "lists"])
    assert numbers_of(unfolded) == np.repeat(numbers, chunks).tolist()
    assert torch.equal(unfolded.tensor("table"), table.view(num_rows * chunks, width))
    assert np.array_equal(unfolded.non_tensor_batch["matrix"], table.view(-1, width).numpy())
    assert unfolded.tensor("long").values().tolist() == flat.tolist()
    assert (
        unfolded.tensor("long").offsets().diff().tolist()
        == np.repeat(lengths.numpy() // chunks, chunks).tolist()
    )
    assert [len(one) for one in unfolded.non_tensor_batch["lists"]] == [
        row + 1 for row in numbers for _ in range(chunks)
    ]
    assert numbers_of(proto.unfold_column_chunks(chunks)) == np.repeat(numbers, chunks).tolist()


@property_test
@given(NUMBERS, st.sampled_from([2, 3, 4, 5]))
def test_pickles_of_every_protocol_give_the_batch_back(numbers, protocol):
    proto = holding(numbers, cls=Labelled)
    proto.label = "mine"
    again = pickle.loads(pickle.dumps(proto, protocol))
    assert identical(again, proto)
    assert again.label == "mine"
    assert numbers_of(again) == numbers


@property_test
@given(NUMBERS)
def test_copies_of_every_kind_hold_the_same(numbers):
    proto = holding(numbers, cls=Labelled)
    buffer = io.BytesIO()
    torch.save(proto, buffer)
    buffer.seek(0)
    for again in (
        copy.copy(proto),
        copy.deepcopy(proto),
        proto.clone(),
        torch.load(buffer, weights_only=False),
    ):
        assert identical(again, proto)


@property_test
@given(NUMBERS)
def test_serialised_tensordicts_come_back(numbers):
    batch = holding(numbers).batch
    assert same(deserialize_tensordict(serialize_tensordict(batch)), batch)


@property_test
@given(batch_and_index())
def test_subclasses_and_metadata_of_their_own_follow_every_choice_of_rows(case):
    numbers, index, _ = case
    proto = holding(numbers, cls=Labelled)
    proto.label = "mine"
    for derived in (
        proto[index],
        proto.repeat(2),
        proto.select(),
        proto.split(2)[0],
        DataProto.concat([proto, proto]),
    ):
        assert isinstance(derived, Labelled)
        assert derived.label == "mine"
        derived.meta_info["nested"]["list"].append(3)
        derived.meta_info["step"] = 4
    assert proto.meta_info == {"step": 3, "nested": {"list": [1, 2]}}
