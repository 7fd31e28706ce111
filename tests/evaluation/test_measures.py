"""What an evaluation with several samples says of a named set."""

from pathlib import Path
from typing import Any

import pytest

from rl_core.errors import RecipeError, RewardError
from rl_core.evaluation.compared import compared_rows
from rl_core.evaluation.gate import Judged, judge
from rl_core.evaluation.measures import by_prompt, summarise_set
from rl_core.evaluation.passes import pass_mark
from rl_core.evaluation.row_scores import deciding_score, row_scores
from rl_core.evaluation.runner import Judging
from schemas.receipts import EvalReceipt, SetReceipt
from schemas.sections.registration import RegistrationConfig

ITEMS = [
    {"uid": "a", "env_class": "gsm8k", "env_extras": {"data_source": "one"}},
    {"uid": "b", "env_class": "gsm8k", "env_extras": {"data_source": "two"}},
]
JUDGING = Judging({"gsm8k": 1.0})


def row(uid: str, reward: float, answer: str | None = "3", **further: Any) -> dict[str, Any]:
    base = {"uid": uid, "reward": reward, "num_tokens": 4, "stop_reason": "eos"}
    return base | ({} if answer is None else {"answer": answer}) | further


def samples() -> list[dict[str, Any]]:
    """Four samples of each of two prompts: 3 and 1 of them pass."""
    passing = [row("a", 1.0), row("a", 1.0), row("a", 1.0), row("a", 0.0, "4")]
    failing = [row("b", 1.0), *(row("b", 0.0, answer) for answer in ("7", "7", ""))]
    return passing + failing


def receipt_of(rows: list[dict[str, Any]], path: Path, judging: Judging = JUDGING) -> SetReceipt:
    return summarise_set(rows, ITEMS, 4, path / "set.jsonl", judging=judging)


def test_every_measure_by_hand(tmp_path: Path):
    receipt = receipt_of(samples(), tmp_path)
    assert (receipt.num_prompts, receipt.num_samples, receipt.num_failed) == (2, 4, 0)
    found = {name: one.value for name, one in receipt.measures.items()}
    assert found == pytest.approx(
        {
            "mean_reward": 0.5,
            "avg@4": 0.5,
            "pass@2": (1.0 + 1 - 3 / 6) / 2,
            "pass@4": 1.0,
            "maj@4": 0.5,
            "format_rate": (1.0 + 0.75) / 2,
            "mean_length": 4.0,
            "truncated_share": 0.0,
        }
    )
    assert all(one.low <= one.value <= one.high for one in receipt.measures.values())
    assert {name: one["avg@4"].value for name, one in receipt.sources.items()} == {
        "one": 0.75,
        "two": 0.25,
    }


def test_a_shaped_reward_has_a_mean_and_no_pass(tmp_path: Path):
    rows = [one | {"reward": one["reward"] / 2} for one in samples()]
    receipt = receipt_of(rows, tmp_path, judging=Judging({"gsm8k": None}))
    assert set(receipt.measures) == {"mean_reward", "format_rate", "mean_length", "truncated_share"}
    prompts = by_prompt(rows, 4)
    assert deciding_score(prompts, "accuracy") == "mean_reward"
    with pytest.raises(RecipeError, match="no score 'pass@2'"):
        row_scores(prompts, "pass@2")


def test_a_failed_sample_counts_for_nothing_within_the_share(tmp_path: Path):
    rows = samples()
    rows[3] = row("a", float("nan"), None, error="prompt:a:sample:3: ValueError: broken")
    with pytest.raises(RewardError, match="1 of 8 held-out rows"):
        receipt_of(rows, tmp_path)
    allowed = Judging({"gsm8k": 1.0}, max_failed_share=0.2)
    receipt = receipt_of(rows, tmp_path, judging=allowed)
    assert receipt.num_failed == 1
    assert receipt.measures["avg@4"].value == pytest.approx((1.0 + 0.25) / 2)
    # Three samples cannot say what four would have passed.
    assert receipt.measures["pass@4"].value == 1.0
    assert receipt.measures["pass@4"].low < 1.0


def evaluation_of(rows: list[dict[str, Any]], folder: Path) -> EvalReceipt:
    folder.mkdir()
    return EvalReceipt(
        label="final",
        step=1,
        num_rows=0,
        accuracy=0.0,
        mean_reward=0.0,
        ci_low=0.0,
        ci_high=1.0,
        mean_length=0.0,
        truncated_share=0.0,
        samples_path="none",
        eval_digest="none",
        sets={"maths": receipt_of(rows, folder)},
    )


def test_the_gate_compares_the_prompts_of_the_set_by_its_measure(tmp_path: Path):
    settings = RegistrationConfig(set="maths", score="pass@2")
    worse = [one | {"reward": 0.0} for one in samples()]
    before, after = (
        evaluation_of(rows, tmp_path / name)
        for name, rows in (("before", worse), ("after", samples()))
    )
    assert after.values()["maths/pass@2"] == 0.75
    found = [compared_rows(one, settings) for one in (before, after)]
    assert found[0] is not None and found[1] is not None
    gate = judge(Judged("this version", found[1]), Judged("baseline", found[0]), settings)
    assert gate.passed
    assert gate.reason.startswith("maths pass@2 0.750 against 0.000 of baseline")
    assert compared_rows(before, RegistrationConfig(set="other")) is None


def test_an_environment_names_its_pass_or_none():
    assert pass_mark("aime") == 1.0
    silent = "tests.evaluation.silent_env:"
    assert pass_mark(f"{silent}Silent") is None
    assert pass_mark(f"{silent}Telling") == 2.0
