"""What an evaluation says of the held-out rows, and what the gate makes of it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.data_proto import DataProto
from rl_core.errors import RecipeError, RewardError
from rl_core.evaluation.gate import Incumbent, judge
from rl_core.evaluation.runner import eval_digest, read_samples, summarise
from schemas.receipts import EvalReceipt

UIDS = ["a", "b", "c", "d"]
ITEMS = [{"uid": uid} for uid in UIDS]


def played(rewards: list[float], errors: list[str | None] | None = None) -> DataProto:
    columns: dict[str, Any] = {
        "uid": UIDS,
        "prompt": [[{"role": "user", "content": f"{uid} = ü?"}] for uid in UIDS],
        "response": [f"answer {uid}" for uid in UIDS],
        "ground_truth": ["1", 2, [3, 4], "4"],
        "stop_reason": ["eos", "length", "eos", "context"],
        "error": errors or [None] * 4,
    }
    return DataProto.from_dict({"rewards": torch.tensor(rewards), "num_tokens": torch.tensor([1, 2, 3, 6])}, columns)


@pytest.fixture
def receipt(tmp_path: Path) -> EvalReceipt:
    return summarise(played([1.0, 0.5, 1.0, 0.0]), ITEMS, "final", 7, tmp_path / "samples" / "final.jsonl")


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
    with pytest.raises(RewardError, match=r"1 of 4 held-out rows.*'b', 'ValueError: broken'"):
        summarise(played([1.0, 0.0, 1.0, 0.0], errors), ITEMS, "final", 7, tmp_path / "final.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_the_digest_is_that_of_the_rows_in_any_order():
    assert eval_digest(ITEMS) == eval_digest(ITEMS[::-1])
    assert eval_digest(ITEMS) != eval_digest(ITEMS[:3])
    assert eval_digest(ITEMS) != eval_digest([*ITEMS[:3], {"uid": "e"}])
    assert eval_digest([{"uid": "a"}, {"uid": "a"}]) != eval_digest([{"uid": "a"}])


def test_a_gain_beyond_the_margin_is_promoted(receipt: EvalReceipt):
    verdict = judge(receipt, Incumbent("champion v3", {"accuracy": 0.4}, receipt.eval_digest), margin=0.05)
    assert verdict.promoted
    assert verdict.reason == "accuracy 0.500 beats champion v3 (0.400) by +0.100"


@pytest.mark.parametrize(
    ("incumbent", "margin"), [(0.5, 0.0), (0.6, 0.0), (0.25, 0.25), (0.4, 0.2)], ids=["tie", "worse", "exact", "small"]
)
def test_no_more_than_the_margin_is_not_promoted(receipt: EvalReceipt, incumbent: float, margin: float):
    verdict = judge(receipt, Incumbent("baseline", {"accuracy": incumbent}, receipt.eval_digest), margin)
    assert not verdict.promoted
    assert f"does not beat baseline ({incumbent:.3f}) by more than {margin}" in verdict.reason


def test_accuracies_on_other_rows_are_not_compared(receipt: EvalReceipt):
    verdict = judge(receipt, Incumbent("champion v3", {"accuracy": 0.0}, eval_digest(ITEMS[:3])), margin=0.0)
    assert not verdict.promoted
    assert "champion v3 was evaluated on other rows" in verdict.reason


def test_another_score_may_decide(receipt: EvalReceipt):
    scored = receipt.model_copy(update={"scores": {"reward_margin": 0.3}})
    better = Incumbent("champion v3", {"accuracy": 0.9, "reward_margin": 0.1}, receipt.eval_digest)
    verdict = judge(scored, better, 0.0, "reward_margin")
    assert verdict.promoted
    assert verdict.reason == "reward_margin 0.300 beats champion v3 (0.100) by +0.200"
    assert not judge(
        scored, Incumbent("champion v3", {"accuracy": 0.1}, receipt.eval_digest), 0.0, "reward_margin"
    ).promoted
    with pytest.raises(RecipeError, match=r"registration.score: no score 'reward_margn' .did you mean 'reward_margin'"):
        judge(scored, better, 0.0, "reward_margn")


def test_further_scores_are_means_and_stand_beside_each_row(tmp_path: Path):
    batch = played([1.0, 0.0, 1.0, 0.0])
    assert batch.batch is not None
    batch.batch["margin"] = torch.tensor([1.0, 2.0, 3.0, 6.0])
    receipt = summarise(batch, ITEMS, "final", 7, tmp_path / "final.jsonl", scores=("margin",))
    assert receipt.scores == {"margin": 3.0}
    assert receipt.values() == {"accuracy": 0.5, "mean_reward": 0.5, "margin": 3.0}
    assert [row["margin"] for row in read_samples(receipt.samples_path)] == [1.0, 2.0, 3.0, 6.0]
