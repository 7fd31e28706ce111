"""What the display says of an evaluation."""

import pytest

from flows.display import Display, describe
from rl_core.runs.held_out import PLAYED
from rl_core.runs.recipes import load_recipe
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.receipts import EvalReceipt, Measure, SetReceipt

RECEIPT = EvalReceipt(
    label="evaluation",
    step=0,
    num_rows=8,
    accuracy=0.5,
    mean_reward=0.5,
    ci_low=0.2,
    ci_high=0.8,
    mean_length=4.0,
    truncated_share=0.0,
    samples_path="samples.jsonl",
    eval_digest="8 rows",
)
MATHS = SetReceipt(
    num_prompts=8,
    num_samples=4,
    num_failed=0,
    measures={
        "mean_reward": Measure(value=0.25, low=0.125, high=0.5),
        "avg@4": Measure(value=0.5, low=0.25, high=0.75),
    },
    sources={},
    samples_path="maths.jsonl",
    eval_digest="8 rows",
)


@pytest.mark.parametrize(
    ("recorded", "said"), [(None, "nothing of these rows"), (0.25, "accuracy 0.250 on the same")]
)
def test_it_says_whether_a_record_is_of_the_same_rows(
    recorded: float | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Display(load_recipe("text")).evaluation("a folder", RECEIPT, recorded)
    out = capsys.readouterr().out
    assert f"recorded {said}" in out
    assert "accuracy 0.500, mean reward 0.500 on 8 held-out rows" in out


def test_sets_and_graded_rewards_are_said_by_what_they_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    graded = RECEIPT.model_copy(update={"graded": True, "sets": {"maths": MATHS}})
    said = describe(graded)
    assert said == "evaluate evaluation: reward 0.500; maths avg@4 0.500 (0.250 to 0.750)"
    Display(load_recipe("text")).evaluation("a folder", graded, None)
    out = capsys.readouterr().out
    assert "mean reward 0.500 on 8 held-out rows" in out and "accuracy" not in out
    assert "0.250 (0.125 to 0.500)" in out


def test_an_evaluation_says_how_far_it_is_and_its_phase_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Display(load_recipe("text")):
        for done in (4, 8):
            announce(ProgressEvent("evaluate"))
            announce(ProgressEvent(PLAYED, done, 8, text="maths"))
        announce(ProgressEvent("evaluate"))
    lines = [line.split("  ", 2)[-1] for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "evaluate",
        "evaluate maths: 4 of 8 prompts",
        "evaluate maths: 8 of 8 prompts",
    ]
