"""The loop's own arithmetic: advantages without failed rows, rollout metrics, padding that is
cut."""

import pytest
import torch

from rl_core.algorithms import algorithms
from rl_core.algorithms.base import StageAlgorithm
from rl_core.data_proto import DataProto
from rl_core.errors import RewardError
from rl_core.train.micro_batches import trim_padding
from rl_core.trainers.advantages import add_advantages
from rl_core.trainers.metrics.describe import rollout_metrics
from rl_core.trainers.track import prompt_batch


@pytest.fixture
def grpo() -> StageAlgorithm:
    algorithm_cls, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    return algorithm_cls(config)


def rollout(
    rewards: list[float], failed: list[bool], num_tokens: list[int] | None = None
) -> DataProto:
    """Replies of three tokens (or as given), in the columns the engine makes."""
    lengths = torch.tensor(num_tokens or [3] * len(rewards))
    mask_BT = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).long() * ~torch.tensor(
        failed
    )[:, None]
    tensors = {
        "rewards": torch.tensor(rewards),
        "failed": torch.tensor(failed),
        "response_mask": mask_BT,
        "num_tokens": lengths,
        "num_turns": torch.arange(1, len(rewards) + 1),
    }
    errors = ["ValueError: broken" if bad else None for bad in failed]
    reasons = ["length" if length > 3 else "eos" for length in lengths.tolist()]
    return DataProto.from_dict(tensors, {"error": errors, "stop_reason": reasons})


def by_adjacency(num_rows: int, group_size: int) -> torch.Tensor:
    return torch.arange(num_rows) // group_size


def test_a_failed_row_has_no_part_in_its_group(grpo: StageAlgorithm):
    whole = rollout([1.0, 0.0, 0.0, 1.0], [False, False, False, False])
    with_failure = rollout(
        [1.0, 0.0, 99.0, 0.0, 1.0, -99.0], [False, False, True, False, False, True]
    )
    add_advantages(grpo, whole, by_adjacency(4, 2))
    metrics = add_advantages(grpo, with_failure, by_adjacency(6, 3))
    good = ~with_failure.tensor("failed")
    assert torch.equal(with_failure.tensor("advantages")[good], whole.tensor("advantages"))
    assert with_failure.tensor("advantages")[~good].count_nonzero() == 0
    assert whole.tensor("advantages")[0, 0] > 0 > whole.tensor("advantages")[1, 0]
    assert metrics["failed_rows"] == 2.0


def test_groups_are_runs_of_siblings(grpo: StageAlgorithm):
    batch = rollout([1.0, 1.0, 0.0, 1.0], [False] * 4)
    add_advantages(grpo, batch, by_adjacency(4, 2))
    signs = batch.tensor("advantages")[:, 0].sign().tolist()
    assert signs == [0.0, 0.0, -1.0, 1.0]


def test_rows_that_the_rewards_teach_nothing_are_counted(grpo: StageAlgorithm):
    batch = rollout([1.0, 1.0, 0.0, 1.0, 9.0, 9.0], [False] * 4 + [True] * 2)
    assert add_advantages(grpo, batch, by_adjacency(6, 2))["zero_advantage_share"] == 0.5


def test_a_rollout_of_failures_only_is_refused_with_the_first_reason(grpo: StageAlgorithm):
    with pytest.raises(
        RewardError, match=r"every row .* without a verdict; first: row 0: ValueError: broken"
    ):
        add_advantages(grpo, rollout([0.0, 0.0], [True, True]), by_adjacency(2, 2))


def test_rollout_metrics_by_hand():
    batch = rollout([1.0, 0.0, 0.5, 0.5], [False] * 4, num_tokens=[1, 2, 3, 6])
    assert rollout_metrics(batch) == pytest.approx(
        {
            "reward_mean": 0.5,
            "reward_std": 0.125**0.5,
            "response_length_mean": 3.0,
            "response_length_max": 6.0,
            "truncated_share": 0.25,
            "turns_mean": 2.5,
        }
    )


def test_the_reward_of_a_failed_row_is_not_averaged():
    metrics = rollout_metrics(rollout([1.0, 1.0, 0.0], [False, False, True]))
    assert (metrics["reward_mean"], metrics["reward_std"]) == (1.0, 0.0)


def test_lengths_and_turns_are_those_of_rows_with_a_verdict():
    metrics = rollout_metrics(rollout([1.0, 1.0, 0.0], [False, False, True], num_tokens=[1, 2, 9]))
    assert (metrics["response_length_mean"], metrics["response_length_max"]) == (1.5, 2.0)
    assert (metrics["truncated_share"], metrics["turns_mean"]) == (0.0, 1.5)


def padded(
    prompt_lengths: list[int], response_lengths: list[int], num_prompt: int, num_response: int
) -> DataProto:
    """Rows whose real tokens are all different and whose padding is 0."""
    prompts, responses = (
        torch.tensor(prompt_lengths)[:, None],
        torch.tensor(response_lengths)[:, None],
    )
    prompt_mask = torch.arange(num_prompt)[None] >= num_prompt - prompts
    reply_mask = torch.arange(num_response)[None] < responses
    attention = torch.cat([prompt_mask, reply_mask], 1).long()
    ids = torch.arange(1, attention.numel() + 1).reshape(attention.shape) * attention
    return DataProto.from_dict(
        {
            "input_ids": ids,
            "attention_mask": attention,
            "response_mask": reply_mask.long(),
            "advantages": torch.arange(reply_mask.numel()).reshape(reply_mask.shape).float()
            * reply_mask,
            "rewards": torch.ones(len(prompt_lengths)),
        },
        {"uid": list(range(len(prompt_lengths)))},
    )


def test_trim_padding_cuts_to_the_longest_prompt_and_reply():
    batch = padded([2, 3], [1, 4], num_prompt=7, num_response=6)
    trimmed = trim_padding(batch)
    assert torch.equal(trimmed.tensor("input_ids"), batch.tensor("input_ids")[:, 4:11])
    assert torch.equal(trimmed.tensor("attention_mask"), batch.tensor("attention_mask")[:, 4:11])
    assert torch.equal(trimmed.tensor("response_mask"), batch.tensor("response_mask")[:, :4])
    assert torch.equal(trimmed.tensor("advantages"), batch.tensor("advantages")[:, :4])
    assert torch.equal(trimmed.tensor("rewards"), batch.tensor("rewards"))
    assert trimmed.non_tensor_batch["uid"].tolist() == [0, 1]


def test_trim_padding_loses_no_token_and_keeps_a_tight_batch():
    loose, tight = (
        padded([1, 5], [2, 2], num_prompt=9, num_response=5),
        padded([4, 2], [1, 3], 4, 3),
    )
    for batch in (loose, tight):
        ids, trimmed = batch.tensor("input_ids"), trim_padding(batch).tensor("input_ids")
        assert trimmed[trimmed > 0].tolist() == ids[ids > 0].tolist()
    assert torch.equal(trim_padding(tight).tensor("input_ids"), tight.tensor("input_ids"))


def test_trim_padding_keeps_observations_between_replies():
    # A micro-batch may hold masked-out tokens (observations, failed rows); only padding goes.
    batch = padded([2], [5], num_prompt=2, num_response=8)
    assert batch.batch is not None
    batch.batch["response_mask"] = torch.tensor([[1, 0, 0, 0, 0, 0, 0, 0]])
    assert trim_padding(batch).tensor("response_mask").tolist() == [[1, 0, 0, 0, 0]]


def test_a_prompt_batch_keeps_its_items_whole():
    items = [{"uid": "a", "prompt": [1, 2]}, {"uid": "b", "prompt": [3, 4]}]
    assert list(prompt_batch(items).non_tensor_batch["item"]) == items
