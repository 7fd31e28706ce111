"""What an evaluation says of the held-out rows."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.data_proto import DataProto
from rl_core.errors import RewardError
from rl_core.evaluation.row_scores import deciding_score, paired_scores, row_scores
from rl_core.evaluation.runner import (
    BINARY,
    Judging,
    eval_digest,
    played_rows,
    read_samples,
    summarise,
)
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
    rows = played_rows(played([1.0, 0.5, 1.0, 0.0]), ITEMS)
    return summarise(rows, ITEMS, "final", 7, tmp_path / "samples" / "final.jsonl")


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
        rows = played_rows(played([1.0, 0.0, 1.0, 0.0], errors), ITEMS)
        summarise(rows, ITEMS, "final", 7, tmp_path / "final.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_row_has_no_score_and_fails_the_evaluation_beyond_its_share_alone(tmp_path: Path):
    rows = played_rows(
        played([1.0, 0.0, 1.0, 0.0], [None, "ValueError: broken", None, None]), ITEMS
    )
    judging = Judging({}, max_failed_share=0.25)
    receipt = summarise(rows, ITEMS, "final", 7, tmp_path / "final.jsonl", judging=judging)
    assert (receipt.num_rows, receipt.num_failed) == (4, 1)
    assert (receipt.accuracy, receipt.mean_reward) == (2 / 3, pytest.approx(2 / 3))
    read = read_samples(receipt.samples_path)
    assert read[1]["error"] == "prompt:b:sample:0: ValueError: broken"
    assert paired_scores(read, read, "accuracy") == ([1.0, 1.0, 0.0], [1.0, 1.0, 0.0])
    with pytest.raises(RewardError, match="1 of 4"):
        judging = Judging({}, max_failed_share=0.24)
        summarise(rows, ITEMS, "final", 7, tmp_path / "final.jsonl", judging=judging)


def test_an_accuracy_needs_rewards_of_0_and_1_or_a_mark(tmp_path: Path):
    def receipt_of(rewards: list[float], judging: Judging = BINARY) -> EvalReceipt:
        rows = played_rows(played(rewards), ITEMS)
        return summarise(rows, ITEMS, "final", 7, tmp_path / "final.jsonl", judging=judging)

    assert not receipt_of([1.0, 0.0, 1.0, 0.0]).graded
    shaped = receipt_of([0.5, 0.25, 0.5, 0.0])
    assert shaped.graded
    assert deciding_score(read_samples(shaped.samples_path), "accuracy") == "mean_reward"
    marked = receipt_of([1.0, -1.0, 1.0, 0.0], Judging({}, otherwise=1.0))
    assert (marked.graded, marked.accuracy) == (False, 0.5)
    half = receipt_of([0.5, 0.25, 0.5, 0.75], Judging({}, otherwise=0.5))
    assert (half.graded, half.accuracy) == (False, 0.75)
    read = read_samples(half.samples_path)
    assert deciding_score(read, "accuracy") == "accuracy"
    assert row_scores(read, "accuracy") == [1.0, 0.0, 1.0, 1.0]


def test_the_digest_is_that_of_the_rows_in_any_order():
    assert eval_digest(ITEMS) == eval_digest(ITEMS[::-1])
    assert eval_digest(ITEMS) != eval_digest(ITEMS[:3])
    assert eval_digest(ITEMS) != eval_digest([*ITEMS[:3], {"uid": "e"}])
    assert eval_digest([{"uid": "a"}, {"uid": "a"}]) != eval_digest([{"uid": "a"}])


def test_further_scores_are_means_and_stand_beside_each_row(tmp_path: Path):
    batch = played([1.0, 0.0, 1.0, 0.0])
    assert batch.batch is not None
    batch.batch["margin"] = torch.tensor([1.0, 2.0, 3.0, 6.0])
    rows = played_rows(batch, ITEMS, scores=("margin",))
    receipt = summarise(rows, ITEMS, "final", 7, tmp_path / "final.jsonl", scores=("margin",))
    assert receipt.scores == {"margin": 3.0}
    assert receipt.values() == {"accuracy": 0.5, "mean_reward": 0.5, "margin": 3.0}
    assert [row["margin"] for row in read_samples(receipt.samples_path)] == [1.0, 2.0, 3.0, 6.0]
