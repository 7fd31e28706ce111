"""A run that taught its model nothing says so; one that did, does not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rl_core.runs.observing.learning import FLAT, NO_ADVANTAGE, NOTHING, what_taught_nothing
from rl_core.runs.recipes import load_recipe

FLAT_STEP = {
    "num_groups": 4.0,
    "zero_std_groups": 4.0,
    "zero_advantage_share": 1.0,
    "grad_norm": 0.0,
}
GOOD_STEP = {
    "num_groups": 4.0,
    "zero_std_groups": 3.0,
    "zero_advantage_share": 0.75,
    "grad_norm": 0.3,
}
NO_ROW = FLAT_STEP | {"grad_norm": math.nan}
REINFORCE = "algorithm={name: reinforce_plus_plus}"
TAUGHT = "algorithm={name: self_distillation}"


@pytest.mark.parametrize(
    ("overrides", "steps", "said"),
    [
        ([], [], []),
        ([], [FLAT_STEP, FLAT_STEP], [f"{FLAT}: {NOTHING}"]),
        ([], [FLAT_STEP, NO_ROW], [f"{FLAT}: {NOTHING}"]),
        ([], [FLAT_STEP, GOOD_STEP], []),
        ([], [NO_ROW, GOOD_STEP], []),
        (
            [],
            [GOOD_STEP | {"grad_norm": 0.0}],
            [f"every step's gradient was 0 or not finite: {NOTHING}"],
        ),
        (
            [],
            [FLAT_STEP | {"grad_norm": 0.1}],
            [f"{FLAT}: the rewards taught nothing, and other terms of the loss"],
        ),
        # Each row is a group of its own there, and none is compared with another of its group.
        ([REINFORCE], [FLAT_STEP], [f"{NO_ADVANTAGE}: {NOTHING}"]),
        ([REINFORCE], [FLAT_STEP | {"zero_advantage_share": 0.0, "grad_norm": 0.2}], []),
        # The sum of its parts may be equal where the parts are not.
        (
            ["algorithm={name: grpo, advantage: {name: gdpo}}"],
            [FLAT_STEP | {"zero_advantage_share": 0.5} | {"grad_norm": 1.0}],
            [],
        ),
        ([], [{"reward_mean": 0.1}], []),
        # The teacher's distributions teach, and rewards are only logged.
        ([TAUGHT], [FLAT_STEP | {"grad_norm": 0.2}], []),
        ([TAUGHT], [FLAT_STEP], [f"every step's gradient was 0 or not finite: {NOTHING}"]),
    ],
)
def test_it_says_what_taught_nothing(
    overrides: list[str], steps: list[dict[str, float]], said: list[str]
):
    found = what_taught_nothing(load_recipe("text", overrides), steps)
    assert len(found) == len(said)
    for one, start in zip(found, said, strict=True):
        assert one.startswith(start)


def test_each_track_is_judged_by_itself():
    def step(**tracks: dict[str, float]) -> dict[str, Any]:
        return {
            f"{track}/{name}": value
            for track, values in tracks.items()
            for name, value in values.items()
        }

    recipe = load_recipe("unified")
    assert what_taught_nothing(recipe, [step(text=FLAT_STEP, images=GOOD_STEP)]) == [
        f"text: {FLAT}: {NOTHING}"
    ]
    assert what_taught_nothing(recipe, [step(text=GOOD_STEP, images=FLAT_STEP)]) == [
        f"images: {FLAT}: {NOTHING}"
    ]
    assert what_taught_nothing(recipe, [step(text=GOOD_STEP, images=GOOD_STEP)]) == []


def test_pairs_are_judged_by_their_gradient():
    recipe = load_recipe("mpo")
    assert what_taught_nothing(recipe, [{"grad_norm": 0.2, "loss": 1.0}]) == []
    assert what_taught_nothing(recipe, [{"grad_norm": 0.0, "loss": 1.0}]) != []
