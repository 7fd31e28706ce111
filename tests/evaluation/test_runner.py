"""What an evaluation says of the held-out rows."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.data_proto import DataProto
from rl_core.errors import RewardError
from rl_core.evaluation.runner import eval_digest, read_samples, summarise
from rl_core.rollout.sample_ids import id_columns
from schemas.receipts import EvalReceipt

UIDS = ["a", "b", "c", "d"]
ITEMS = [{"uid": uid} for uid in UIDS]


def played(rewards: list[float], errors: list[str | None] | None = None) -> DataProto:
    columns: dict[str, Any] = {
        **id_columns(UIDS),
        "uid": UIDS,
        "prompt": [[{"role": "user", "content": f"{uid} = ü?"}] for uid in UIDS],
        "response": [f"answer {uid}" for uid in UIDS],
        "ground_truth": ["1", 2, [3, 4], "4"],
        "stop_reason": ["eos", "length", "eos", "context"],
        "error": errors or [None] * 4,
    }
    return DataProto.from_dict(
        {"rewards": torch.tensor(rewards), "num_tokens": torch.tensor([1, 2, 3, 6])}, columns
    )


@pytest.fixture
def receipt(tmp_path: Path) -> EvalReceipt:
    return summarise(
        played([1.0, 0.5, 1.0, 0.0]), ITEMS, "final", 7, tmp_path / "samples" / "final.jsonl"
    )


def test_the_receipt_counts_full_rewards_only_as_right(receipt: EvalReceipt):
    assert (receipt.label, receipt.step, receipt.num_rows) == ("final", 7, 4)
    assert (receipt.accuracy, receipt.mean_reward) == (0.5, 0.625)
    assert (receipt.ci_low, receipt.ci_high) == pytest.approx((0.1500, 0.8500), abs=5e-5)
    assert (receipt.mean_length, receipt.truncated_share) == (3.0, 0.5)


def test_the_samples_are_all_rows_in_order(receipt: EvalReceipt):
    rows = read_samples(receipt.samples_path)
    assert [row["uid"] for row in rows] == UIDS
    assert [row["reward"] for row in rows] == [1.0, 0.5, 1.0, 0.0]
    assert rows[1] == {
        "group_id": "b",
        "sample_id": "prompt:b:sample:0",
        "uid": "b",
        "prompt": [{"role": "user", "content": "b = ü?"}],
        "response": "answer b",
        "ground_truth": 2,
        "stop_reason": "length",
        "reward": 0.5,
        "num_tokens": 2,
    }


def test_a_row_whose_environment_failed_makes_no_accuracy(tmp_path: Path):
    errors = [None, "ValueError: broken", None, None]
    with pytest.raises(RewardError, match=r"1 of 4 held-out.*prompt:b:sample:0: ValueError"):
        summarise(played([1.0, 0.0, 1.0, 0.0], errors), ITEMS, "final", 7, tmp_path / "final.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_the_digest_is_that_of_the_rows_in_any_order():
    assert eval_digest(ITEMS) == eval_digest(ITEMS[::-1])
    assert eval_digest(ITEMS) != eval_digest(ITEMS[:3])
    assert eval_digest(ITEMS) != eval_digest([*ITEMS[:3], {"uid": "e"}])
    assert eval_digest([{"uid": "a"}, {"uid": "a"}]) != eval_digest([{"uid": "a"}])


def test_further_scores_are_means_and_stand_beside_each_row(tmp_path: Path):
    batch = played([1.0, 0.0, 1.0, 0.0])
    assert batch.batch is not None
    batch.batch["margin"] = torch.tensor([1.0, 2.0, 3.0, 6.0])
    receipt = summarise(batch, ITEMS, "final", 7, tmp_path / "final.jsonl", scores=("margin",))
    assert receipt.scores == {"margin": 3.0}
    assert receipt.values() == {"accuracy": 0.5, "mean_reward": 0.5, "margin": 3.0}
    assert [row["margin"] for row in read_samples(receipt.samples_path)] == [1.0, 2.0, 3.0, 6.0]
