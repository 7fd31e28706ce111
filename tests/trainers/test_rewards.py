"""Scores joined to a rollout that stays with its ranks: rewards replaced, rows without a score
taken out."""

import math

import pytest
import torch

from rl_core.data_proto import DataProto
from rl_core.distributed.refs import DataProtoRef, Part
from rl_core.errors import RewardError
from rl_core.rewards.service import RewardService
from rl_core.trainers.metrics.env_metrics import environment_metrics
from rl_core.trainers.rewards import add_scores, reward_parts
from schemas.sections.rewards import FailurePolicy, RewardServiceConfig, Truncation

QUICK = {"backoff_s": 0.0}
BLOCKS = [{"name": "math", "weight": 2.0}]


def as_ref(batch: DataProto) -> DataProtoRef:
    assert batch.batch is not None
    part = Part(
        len(batch),
        {},
        batch,
        {},
        tuple(map(str, batch.batch.keys())),
        tuple(batch.non_tensor_batch),
    )
    return DataProtoRef([part])


def rollout() -> DataProtoRef:
    """A right answer, one without a truth, one whose environment failed, and a cut-off one."""
    tensors = {
        "rewards": torch.tensor([1.0, 1.0, 0.0, 1.0]),
        "turn_rewards": torch.tensor([[0.0, 1.0], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]),
        "response_mask": torch.tensor([[1, 1], [1, 1], [0, 0], [1, 1]]),
        "failed": torch.tensor([False, False, True, False]),
        "last_reply_tokens": torch.tensor([2, 2, 0, 2]),
    }
    objects = {
        "prompt": ["?"] * 4,
        "replies": [[r"\boxed{4}"]] * 4,
        "ground_truth": ["4", None, "4", "4"],
        "stop_reason": ["eos", "eos", "failed", "length"],
        "error": [None, None, "ValueError: no", None],
    }
    return RowsHere(as_ref(DataProto.from_dict(tensors, objects)).parts)


class RowsHere(DataProtoRef):
    """A reference whose object columns lie here, as tensors of few bytes do."""

    @property
    def non_tensor_batch(self):  # type: ignore[override]
        objects = dict(self.parts[0].narrow.non_tensor_batch)
        for layer in self.layers:
            objects |= layer.non_tensor_batch if isinstance(layer, DataProto) else {}
        return objects

    def fetch(self, keys=None):  # type: ignore[override]
        return self.parts[0].narrow.select(
            [key for key in keys if key in self.parts[0].tensor_keys],
            [key for key in keys if key in self.parts[0].object_keys],
        )

    def select(self, keys):  # type: ignore[override]
        return self.fetch(keys)


def add(batch: DataProtoRef, **config: object) -> dict[str, float]:
    settings = RewardServiceConfig.model_validate({**QUICK, **config})
    return add_scores(batch, RewardService(BLOCKS, settings), {"math": 2.0}, settings, 8)  # type: ignore[arg-type]


def test_scores_are_added_and_rows_without_one_are_taken_out():
    batch = rollout()
    metrics = add(batch)
    assert batch.tensor("rewards").tolist() == [3.0, 1.0, 0.0, 3.0]
    assert batch.tensor("turn_rewards").tolist() == [[0, 3], [0, 1], [0, 0], [1, 2]]
    assert batch.tensor("failed").tolist() == [False, True, True, False]
    assert batch.tensor("response_mask").tolist() == [[1, 1], [0, 0], [0, 0], [1, 1]]
    assert batch.non_tensor_batch["error"][1].startswith("reward math: the row has no ground truth")
    assert batch.non_tensor_batch["error"][2] == "ValueError: no"
    assert (
        metrics["unscored_rows"],
        metrics["reward/math/failed"],
        metrics["reward/math/mean"],
    ) == (1.0, 1.0, 1.0)
    assert metrics["reward/math/retried"] == 1.0
    parts = reward_parts(batch, torch.tensor([True, False, False, True]))
    assert {key: part.tolist() for key, part in parts.items()} == {
        "environment": [1.0, 1.0],
        "math": [2.0, 2.0],
    }


def test_a_recipe_may_rather_fail_than_drop():
    with pytest.raises(
        RewardError, match=r"1 of 4 rows have no score .* first: row 1: reward math: the row has no"
    ):
        add(rollout(), on_failure=FailurePolicy.FAIL)


def test_shaping_works_without_scorers_and_nothing_happens_without_either():
    batch = rollout()
    keep, zero = RewardServiceConfig(), RewardServiceConfig(truncated=Truncation.ZERO)
    assert add_scores(batch, None, {}, keep, 8) == {}
    assert batch.tensor("rewards").tolist() == [1.0, 1.0, 0.0, 1.0]
    metrics = add_scores(batch, None, {}, zero, 8)
    assert batch.tensor("rewards").tolist() == [1.0, 1.0, 0.0, 0.0]
    assert metrics["unscored_rows"] == 0.0


def test_environments_are_averaged_by_their_own_rule_and_failures_counted_by_call():
    objects = {
        "env_class": ["gsm8k_multi_turn"] * 3,
        "env_metrics": [{"correct": 1.0, "turns": 1.0}, {"correct": 0.0, "turns": 3.0}, {}],
        "failed_call": [None, "close", "step"],
        "timed_out": [False, False, True],
    }
    metrics = environment_metrics(DataProto.from_dict(None, objects), {})
    assert metrics["env/gsm8k_multi_turn/correct"] == 0.5
    assert metrics["env/gsm8k_multi_turn/turns"] == 2.0
    counted = {key: value for key, value in metrics.items() if key.startswith("env_failures/")}
    assert counted == {
        "env_failures/init": 0.0,
        "env_failures/step": 1.0,
        "env_failures/close": 1.0,
        "env_failures/timeout": 1.0,
    }
    assert not any(map(math.isnan, metrics.values()))
