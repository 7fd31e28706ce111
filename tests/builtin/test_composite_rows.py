"""Rows of several reasoning-gym tasks at several levels."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_core.builtin.data.environments.composite import CompositeRows
from rl_core.builtin.data.environments.files import materialise_environment_rows
from rl_core.envs.registration import make
from rl_core.errors import DataError

MEMBERS = [
    {"task": "chain_sum", "level": 0, "weight": 3},
    {"task": "chain_sum", "level": 2},
    {"task": "leg_counting", "config": {"max_animals": 3}},
]


def rows(folder: Path, **spec: Any) -> list[dict[str, Any]]:
    made = CompositeRows(**{"composite": MEMBERS, "size": 40, "seed": 1} | spec)
    lines = materialise_environment_rows(made, folder).read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_tasks_are_mixed_by_weight_and_graded_at_their_level(tmp_path: Path) -> None:
    train, held_out = rows(tmp_path), rows(tmp_path, split="eval")
    counted = [row["data_source"] for row in train]
    assert len(train) == 40 and set(counted) == {
        "reasoning_gym/chain_sum/0",
        "reasoning_gym/chain_sum/2",
        "reasoning_gym/leg_counting",
    }
    assert counted.count("reasoning_gym/chain_sum/0") > counted.count("reasoning_gym/chain_sum/2")
    questions = [{row["extra_info"]["question"] for row in split} for split in (train, held_out)]
    assert len(questions[0]) == 40 and not questions[0] & questions[1]
    for source in set(counted):
        row = train[counted.index(source)]
        env = make("reasoning_gym", {}, row)
        answer = row["reward_spec"]["ground_truth"]
        assert env.step(f"It is {answer}")["reward"] == 1.0  # type: ignore[index]
        env.close()


@pytest.mark.parametrize(
    ("member", "what"),
    [
        ({"task": "chain_sums"}, "did you mean 'chain_sum'"),
        ({"task": "chain_sum", "level": 99}, "its curriculum ends at"),
        ({"task": "chain_sum", "config": {"terms": 2}}, "unknown setting 'terms'"),
        ({"task": "chain_sum", "config": {"min_terms": 0}}, "is refused"),
    ],
)
def test_a_member_that_cannot_be_made_is_named(
    tmp_path: Path, member: dict[str, Any], what: str
) -> None:
    with pytest.raises(DataError, match=what):
        rows(tmp_path, composite=[member])
