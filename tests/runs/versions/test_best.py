"""Which iteration a run registers: an earlier one only if it is better beyond doubt."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rl_core.evaluation.runner import summarise
from rl_core.runs.run_folder import RunFolder, run_key
from rl_core.runs.versions.best import RECEIPT, choose, chosen_iteration, worth_keeping
from schemas.recipe import Recipe

VALUES: dict[str, Any] = {
    "name": "tiny",
    "model": {"path": "somewhere"},
    "data": {"train": ["a.jsonl"], "eval": ["b.jsonl"]},
    "training": {"num_iterations": 3},
    "evaluation": {"eval_every": 1},
}
BEST = Recipe.model_validate(VALUES | {"registration": {"from": "best"}})
LAST = Recipe.model_validate(VALUES)
NUM_ROWS = 40


def run_of(folder: Path, right: dict[int, int]) -> RunFolder:
    """A run whose iterations have so many right answers of 40, the first rows first."""
    made = RunFolder(folder / "run")
    made.create("name: tiny\n")
    for iteration, num_right in right.items():
        with made.publish_checkpoint(iteration, {"step": iteration}, keep_last=9):
            pass
        items = [{"uid": f"row-{row}"} for row in range(NUM_ROWS)]
        rows = [
            item | {"reward": float(row < num_right), "num_tokens": 3, "stop_reason": "eos"}
            for row, item in enumerate(items)
        ]
        label = f"iteration-{iteration}"
        path = made.root / "samples" / f"{label}.jsonl"
        made.save_receipt(f"evaluate-{label}", summarise(rows, items, label, iteration, path))
    return made


def test_a_run_that_got_worse_registers_its_best(tmp_path: Path):
    folder = run_of(tmp_path, {1: 20, 2: 32, 3: 16})
    receipt = choose(folder, BEST)
    assert (receipt.iteration, receipt.last) == (2, 3)
    assert receipt.reason.startswith("accuracy 0.800 against 0.400 of iteration 3, the last one")
    assert str(receipt).startswith("iteration 2 of 3 is registered")
    assert chosen_iteration(folder, BEST) == 3, "nothing is chosen before the receipt is stored"
    folder.save_receipt(RECEIPT, receipt)
    assert chosen_iteration(folder, BEST) == 2


def test_a_lead_within_the_interval_leaves_the_last_one(tmp_path: Path):
    receipt = choose(run_of(tmp_path, {1: 20, 2: 22, 3: 20}), BEST)
    assert receipt.iteration == 3
    assert receipt.reason == "no earlier iteration is better in accuracy beyond doubt"


def test_a_removed_checkpoint_is_no_candidate(tmp_path: Path):
    folder = run_of(tmp_path, {1: 16, 2: 32, 3: 16})
    (folder.checkpoint(2) / ".complete").unlink()
    assert choose(folder, BEST).iteration == 3


def test_the_checkpoint_of_the_highest_score_is_kept(tmp_path: Path):
    folder = run_of(tmp_path, {1: 32, 2: 20})
    assert worth_keeping(folder, BEST) == [1]
    assert worth_keeping(folder, LAST) == []


def test_the_last_iteration_is_evaluated_beside_the_others_where_they_are_compared():
    assert [LAST.evaluates_after(iteration) for iteration in (1, 2, 3)] == [True, True, False]
    assert BEST.evaluates_after(3)
    with pytest.raises(ValidationError, match=r"registration\.from: best compares iterations"):
        Recipe.model_validate(VALUES | {"evaluation": {}, "registration": {"from": "best"}})


def test_a_run_keeps_its_identity_unless_it_measures_something_else():
    def key(evaluation: dict[str, Any]) -> str:
        return run_key(Recipe.model_validate(VALUES | {"evaluation": evaluation}), "cache")

    assert run_key(BEST, "cache") == run_key(LAST, "cache") == key({"eval_every": 1, "sets": {}})
    sets = {"maths": {"data": ["c.jsonl"], "samples": 4, "temperature": 1.0}}
    assert key({"eval_every": 1, "sets": sets}) != key({"eval_every": 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"evaluation": {"sets": {"maths": {"data": ["c.jsonl"], "samples": 4}}}},
            "samples: 4 greedy replies are one and the same",
        ),
        ({"evaluation": {"sets": {" ": {"data": ["c.jsonl"]}}}}, "the name of a set has 1 to 100"),
        ({"registration": {"set": "maths"}}, "none of evaluation.sets, which are: none"),
        (
            {"domain": "preference", "evaluation": {"sets": {"maths": {"data": ["c.jsonl"]}}}},
            "evaluation.sets: in the domains text, vision and sft alone",
        ),
    ],
    ids=["greedy-samples", "name", "unknown-set", "pairs"],
)
def test_sets_that_cannot_be_measured_are_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate(VALUES | changes)
