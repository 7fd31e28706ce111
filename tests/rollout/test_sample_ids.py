"""Names of rollout rows: siblings share a group, and no two rows of a step have one name."""

from typing import Any

import torch

from rl_core.data_proto import DataProto
from rl_core.rollout.sample_ids import (
    GROUP,
    SAMPLE,
    group_columns,
    groups_of,
    id_columns,
    named_error,
)
from rl_core.trainers.track import prompt_batch


def items(*uids: str) -> list[dict[str, Any]]:
    return [{"uid": uid} for uid in uids]


def test_siblings_share_a_group_and_are_numbered_in_it():
    columns = group_columns(groups_of(prompt_batch(items("a", "b"))), 2)
    assert columns[GROUP] == ["a", "a", "b", "b"]
    assert columns[SAMPLE] == [
        "prompt:a:sample:0",
        "prompt:a:sample:1",
        "prompt:b:sample:0",
        "prompt:b:sample:1",
    ]


def test_a_prompt_that_is_sampled_twice_in_a_step_makes_two_groups():
    first = groups_of(prompt_batch(items("a", "b", "a")))
    later = groups_of(prompt_batch(items("a", "b"), attempt=1))
    assert first == ["a", "b", "a~1"]
    assert len({*first, *later}) == 5


def test_a_batch_without_groups_has_those_of_its_items():
    assert groups_of(DataProto.from_dict(non_tensors={"item": items("a", "a")})) == ["a", "a~1"]


def test_siblings_are_numbered_wherever_they_stand():
    samples = id_columns(["a", "b", "a"])[SAMPLE]
    assert samples == ["prompt:a:sample:0", "prompt:b:sample:0", "prompt:a:sample:1"]


def test_an_error_names_its_sample():
    rows = DataProto.from_dict(
        {"rewards": torch.zeros(2)}, {**id_columns(["a", "a"]), "error": [None, "ValueError: no"]}
    )
    assert named_error(rows, 1) == "prompt:a:sample:1: ValueError: no"
