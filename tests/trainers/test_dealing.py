"""Rows go to ranks by tokens: the parts are more even, and the run learns the same to rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_core.data_proto import DataProto
from rl_core.distributed.layers import Derived
from rl_core.distributed.refs import DataProtoRef, Part, Reordered
from rl_core.train.result import TrainStepResult
from rl_core.trainers.dealing import DealingStack, can_be_dealt, dealt, group_spans
from rl_core.trainers.domains import text
from rl_core.trainers.domains.text import TextTrainer
from tests.rollout.built import built
from tests.rollout.vowels import ITEMS, recipe


@given(st.lists(st.integers(0, 100), min_size=4, max_size=24), st.sampled_from([2, 4]))
def test_every_group_is_dealt_once_and_no_part_is_larger_than_before(
    tokens: list[int], num_ranks: int
):
    tokens = tokens[: len(tokens) // num_ranks * num_ranks]
    order = dealt(tokens, num_ranks)
    assert sorted(order) == list(range(len(tokens)))
    size = len(tokens) // num_ranks

    def largest(groups: list[int]) -> int:
        parts = np.array([tokens[group] for group in groups]).reshape(num_ranks, size)
        return int(parts.sum(1).max())

    assert largest(order) <= largest(list(range(len(tokens))))


def test_a_rank_with_the_long_rows_gives_some_of_them_away():
    assert dealt([9, 8, 1, 2], 2) == [0, 2, 1, 3]
    assert dealt([5, 5, 5, 5], 2) == [0, 1, 2, 3]


def test_groups_of_different_sizes_stay_where_they_are():
    assert group_spans(["a", "a", "b", "b"]) == [(0, 2), (2, 4)]
    assert can_be_dealt([(0, 2), (2, 4)], 2)
    assert not can_be_dealt([(0, 2), (2, 5)], 2)
    assert not can_be_dealt([(0, 2), (2, 4), (4, 6)], 2)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_rows_by_reference_come_in_the_order_asked_for_with_what_the_driver_added():
    parts = []
    for first in (0, 4):
        rows = DataProto.from_dict({"number": torch.arange(first, first + 4)})
        parts.append(Part(4, {}, rows, {}, ("number",), ()))
    batch = DataProtoRef(parts).union(DataProto.from_dict({"ten": torch.arange(8) * 10}))
    batch.derive(Derived("ten", ("ten",), torch.add, (torch.arange(8),)))
    dealt_out = Reordered(batch, ((6, 8), (0, 2), (4, 6), (2, 4)))
    shards = [dealt_out.shard(2, part).fetch() for part in range(2)]
    assert [shard.tensor("number").tolist() for shard in shards] == [[6, 7, 0, 1], [4, 5, 2, 3]]
    assert [shard.tensor("ten").tolist() for shard in shards] == [[66, 77, 0, 11], [44, 55, 22, 33]]


def test_log_probabilities_are_those_of_the_rows_again():
    class Stack:
        def train(self, shard: DataProto) -> TrainStepResult:
            parts = shard.tensor("number").float()[:, None].split(2)
            return TrainStepResult(0.0, 0.0, 0.0, (), 0, {}, tuple(parts))

    numbers, groups = torch.arange(4), np.array(["a", "b", "c", "d"], object)
    batch = DataProto.from_dict(
        {"number": numbers, "num_tokens": torch.tensor([9, 8, 1, 2])}, {"group_id": groups}
    )
    stack: Any = Stack()
    (said,) = DealingStack(stack, 2).train(batch).log_probs
    assert torch.equal(said[:, 0], numbers.float())


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_two_ranks_learn_what_they_learn_undealt(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    placement = {"num_devices": 2, "threads_per_device": 1, "micro_batch_size": 8}
    settings = recipe(
        tiny_model_dir,
        dedicated=False,
        placement=placement,
        fsdp={"param_dtype": "float32"},
        optimizer={"learning_rate": 1e-3, "eps": 1e-4},
    )
    ends, said = [], []
    for is_dealt in (True, False):
        if not is_dealt:
            monkeypatch.setattr(text, "DealingStack", lambda stack, num_replicas: stack)
        with built(TextTrainer(settings, settings.model.path, ITEMS)) as trainer:
            _, rollout = trainer.step()
            (portion, *_) = trainer.record.tracks["text"]
            log_probs = portion.log_probs_like(rollout.tensor("rollout_log_probs"))
            mask = rollout.tensor("response_mask").bool() & ~log_probs.isnan()
            # Each row has its own.
            distance = (log_probs - rollout.tensor("rollout_log_probs"))[mask].abs().max()
            assert float(distance) < 1e-4
            ends.append(trainer.backends()["policy"].full_state()[0])
            said.append(list(rollout.non_tensor_batch["response"]))
    assert said[0] == said[1]
    for name, weight in ends[0].items():
        torch.testing.assert_close(weight, ends[1][name], rtol=0, atol=1e-5)
