"""What the display says of an evaluation."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.console import Console, Table
from flows.display import Display, describe
from flows.summary import accuracy_table, score_table
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


SCORES = {
    "env/chain_sum_exact_match": 0.25,
    "env/number_of_tool_calls_in_a_turn": 2.5,
    "judge/courtesy": 0.125,
    "judge/brevity": 0.0625,
    "an_environment_with_a_very_long_name/share_of_questions": 0.75,
}


@pytest.mark.parametrize("make_table", [accuracy_table, score_table])
def test_every_score_and_its_change_fit_a_terminal_of_80_columns(
    make_table: Callable[..., Table],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    receipts = []
    for label, gain in (("baseline", 0.0), ("final", 0.5)):
        path = tmp_path / f"{label}.jsonl"
        scores = {name: value + gain for name, value in SCORES.items()}
        path.write_text(f"{json.dumps({'reward': gain, **scores})}\n" * 8)
        scores |= {"only/at_the_end": 1.0} if gain else {}
        changed = {"label": label, "samples_path": str(path), "scores": scores}
        receipts.append(RECEIPT.model_copy(update=changed))
    Console().print(make_table("a run", *receipts))
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert all(len(line) <= 80 for line in lines) and "…" not in said
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "│" in line]
    found = {row[0]: row[1:] for row in cells}
    for name in list(SCORES)[2:4]:
        value = SCORES[name]
        shown = [f"{value:.3f}", f"{value + 0.5:.3f}", "+0.500"]
        assert found[name.replace("_", " ")][:3] == shown
    assert found["only/at the end"][:3] == ["", "1.000", ""]
    first = "".join(row[0] for row in cells)
    for name in SCORES:
        assert name.replace("_", "").replace(" ", "") in first.replace(" ", "")


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
