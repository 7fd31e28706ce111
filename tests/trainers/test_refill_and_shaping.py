"""Which groups a step keeps, what widening leaves alone, and what long or cut-off replies cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_core.algorithms.shaping import OverlongConfig
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.distributed.refs import store
from rl_core.runs.observing.means import means_of_steps
from rl_core.trainers.length_penalty import add_greedy_rewards, shape_overlong
from rl_core.trainers.refill import Refill, informative_groups, joined


def rollout(
    rewards: list[float],
    failed: list[bool] | None = None,
    *,
    num_prompt: int = 2,
    num_response: int = 3,
    lengths: list[int] | None = None,
    reasons: list[str] | None = None,
) -> DataProto:
    """Rows with ids that are all different; by default every place of the reply is an action."""
    num_rows = len(rewards)
    failed = failed or [False] * num_rows
    lengths_B = torch.tensor(lengths or [num_response] * num_rows)
    mask = (torch.arange(num_response)[None] < lengths_B[:, None]).long()
    ids = torch.arange(1, num_rows * (num_prompt + num_response) + 1).reshape(num_rows, -1)
    last = (torch.arange(num_response)[None] == lengths_B[:, None] - 1).float()
    return DataProto.from_dict(
        {
            "input_ids": ids,
            "attention_mask": torch.cat([torch.ones(num_rows, num_prompt).long(), mask], 1),
            "response_mask": mask,
            "rewards": torch.tensor(rewards),
            "turn_rewards": last * torch.tensor(rewards)[:, None],
            "failed": torch.tensor(failed),
            "num_tokens": lengths_B,
            "last_reply_tokens": lengths_B,
        },
        {
            "uid": [f"{row}" for row in range(num_rows)],
            "stop_reason": reasons or ["eos"] * num_rows,
            "error": ["broken" if bad else None for bad in failed],
        },
    )


def test_a_group_teaches_something_when_its_rows_with_a_verdict_differ() -> None:
    batch = rollout(
        [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0],
        [False, False, False, False, True, False, True, True],
    )
    # Group 0 differs; 1 is flat; of 2 only one row has a verdict; 3 has none.
    assert informative_groups(batch, 2) == [0]


def test_missing_groups_come_from_later_rollouts_and_the_surplus_is_counted() -> None:
    found = Refill(num_groups=3, group_size=2)
    found.add(rollout([1.0, 0.0, 1.0, 1.0, 0.0, 0.0]))
    assert found.num_missing == 2
    found.add(rollout([0.5, 0.5, 0.2, 0.9, 0.3, 0.1, 0.6, 0.4], num_prompt=4, num_response=2))
    batch = found.batch()
    assert found.num_missing == 0
    assert batch.tensor("rewards").tolist() == pytest.approx([1.0, 0.0, 0.2, 0.9, 0.3, 0.1])
    assert found.metrics() == {
        "dynamic/extra_rollouts": 1.0,
        "dynamic/flat_groups": 3.0,
        "dynamic/surplus_groups": 1.0,
        "dynamic/missing_groups": 0.0,
    }
    assert found.num_tokens == 6 * 3 + 8 * 2


def test_a_rollout_whose_groups_all_teach_is_trained_as_it_is() -> None:
    first = rollout([1.0, 0.0, 0.0, 1.0])
    found = Refill(num_groups=2, group_size=2)
    found.add(first)
    assert found.batch() is first


def test_without_any_group_that_teaches_the_first_rollout_stays() -> None:
    first = rollout([1.0, 1.0])
    found = Refill(num_groups=1, group_size=2)
    found.add(first)
    found.add(rollout([0.0, 0.0]))
    assert found.batch() is first


def test_joined_rows_keep_every_token_and_mask_what_was_filled_up() -> None:
    short, wide = (
        rollout([1.0], num_prompt=2, num_response=3),
        rollout([0.0], num_prompt=4, num_response=2),
    )
    batch = joined([short, wide])
    assert batch.tensor("input_ids").tolist() == [[0, 0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 0]]
    assert batch.tensor("attention_mask").tolist() == [[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 0]]
    assert batch.tensor("response_mask").tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch.tensor("turn_rewards").tolist() == [[0, 0, 1], [0, 0, 0]]


def ref_of(batch: DataProto) -> DataProtoRef:
    return DataProtoRef([store(batch)])


@pytest.mark.usefixtures("ray_cluster")
def test_overlong_penalty_by_hand() -> None:
    batch = ref_of(
        rollout(
            [1.0, 1.0, 1.0, 1.0],
            [False, False, False, True],
            num_response=10,
            lengths=[6, 8, 10, 10],
        )
    )
    metrics = shape_overlong(batch, OverlongConfig(buffer=4, penalty=2.0), 10)
    # It sets in after 6 tokens: 8 are half of the way to the limit. A row without a verdict is left
    # alone.
    assert batch.tensor("rewards").tolist() == [1.0, 0.0, -1.0, 1.0]
    assert batch.tensor("turn_rewards").sum(1).tolist() == [1.0, 0.0, -1.0, 1.0]
    assert batch.tensor("turn_rewards")[1].nonzero().tolist() == []
    assert metrics == {"overlong_penalty_mean": -0.75}


@pytest.mark.usefixtures("ray_cluster")
def test_cut_off_replies_are_filtered_from_the_loss_but_keep_their_reward() -> None:
    batch = ref_of(rollout([1.0, 0.5, 0.0], reasons=["eos", "length", "context"]))
    metrics = shape_overlong(batch, OverlongConfig(filter=True), 3)
    assert batch.tensor("response_mask").sum(1).tolist() == [3, 0, 0]
    assert batch.tensor("rewards").tolist() == [1.0, 0.5, 0.0]
    assert metrics == {"overlong_filtered_rows": 2.0}


@pytest.mark.usefixtures("ray_cluster")
def test_nothing_is_learnt_where_the_greedy_reply_has_no_verdict() -> None:
    batch = ref_of(rollout([1.0, 0.0, 0.5, 0.5]))
    metrics = add_greedy_rewards(batch, ref_of(rollout([0.25, 0.0], [False, True])))
    assert batch.tensor("greedy_rewards").tolist() == [0.25, 0.25, 0.0, 0.0]
    assert batch.tensor("failed").tolist() == [False, False, True, True]
    assert batch.tensor("response_mask").sum(1).tolist() == [3, 3, 0, 0]
    assert list(batch.non_tensor_batch["error"]) == [None, None, "broken", "broken"]
    assert metrics == {"greedy_reward_mean": 0.25}


def test_a_step_without_rows_to_train_on_leaves_the_means_of_the_others() -> None:
    # With every reply cut off and filtered there is no ratio to speak of.
    assert means_of_steps([{"reward": 1.0, "ratio": 2.0}, {"reward": 0.0}]) == {
        "reward": 0.5,
        "ratio": 2.0,
    }


def test_switched_off_shaping_touches_nothing() -> None:
    untouchable: Any = rollout([1.0])
    assert shape_overlong(untouchable, OverlongConfig(), 3) == {}
    assert shape_overlong(untouchable, None, 3) == {}
