"""What the display says of an evaluation."""

import pytest

from flows.display import Display
from rl_core.runs.recipes import load_recipe
from schemas.receipts import EvalReceipt


@pytest.mark.parametrize(
    ("recorded", "said"), [(None, "nothing of these rows"), (0.25, "accuracy 0.250 on the same")]
)
def test_it_says_whether_a_record_is_of_the_same_rows(
    recorded: float | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    receipt = EvalReceipt(
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
    Display(load_recipe("text")).evaluation("a folder", receipt, recorded)
    out = capsys.readouterr().out
    assert f"recorded {said}" in out
    assert "accuracy 0.500, mean reward 0.500 on 8 held-out rows" in out
