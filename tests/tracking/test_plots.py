"""The reward curve is a PNG of the promised size, and shows what it is given."""

import math
from pathlib import Path

import pytest
from PIL import Image

from rl_core.tracking.plots import reward_curve
from schemas.receipts import EvalReceipt


def evaluation(step: int, accuracy: float) -> EvalReceipt:
    return EvalReceipt(
        label=f"iteration-{step}",
        step=step,
        num_rows=200,
        accuracy=accuracy,
        mean_reward=accuracy,
        ci_low=max(0.0, accuracy - 0.06),
        ci_high=min(1.0, accuracy + 0.06),
        mean_length=5,
        truncated_share=0,
        samples_path="samples.jsonl",
        eval_digest="e" * 64,
    )


def colours(path: Path) -> set[object]:
    with Image.open(path) as image:
        return {
            colour for _, colour in image.convert("RGB").getcolors(image.width * image.height) or []
        }


def size(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


BLUE, ORANGE = (37, 99, 235), (217, 72, 15)
HISTORY = [
    {"step": s, "reward_mean": 0.3 + 0.02 * s, "reward_std": 0.4 - 0.01 * s} for s in range(1, 30)
]


def test_curve_has_both_series_and_the_promised_size(tmp_path):
    path = reward_curve(
        HISTORY, [evaluation(29, 0.9), evaluation(0, 0.36)], tmp_path / "new" / "curve.png"
    )
    assert size(path) == (900, 500)
    assert {BLUE, ORANGE} <= colours(path)


@pytest.mark.parametrize(
    ("history", "evaluations", "present", "absent"),
    [
        ([], [evaluation(0, 0.3)], ORANGE, BLUE),
        ([{"step": 1, "reward_mean": 0.4}], [], BLUE, ORANGE),
        (
            [*HISTORY, {"step": 30, "reward_mean": math.nan, "reward_std": math.nan}],
            [],
            BLUE,
            ORANGE,
        ),
    ],
)
def test_curve_of_a_run_that_has_only_one_kind_of_number(
    tmp_path, history, evaluations, present, absent
):
    path = reward_curve(history, evaluations, tmp_path / "curve.png")
    assert present in colours(path)
    assert absent not in colours(path)


def test_curve_of_a_run_that_has_nothing_yet(tmp_path):
    assert size(reward_curve([], [], tmp_path / "curve.png")) == (900, 500)
