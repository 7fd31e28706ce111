import math
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError

from rl_core.sde import (
    NoiseRecipe,
    SdeConfig,
    StepsConfig,
    dynamic_shift,
    initial_noise,
    sigmas,
    stochastic_steps,
)


def test_schedule_by_hand() -> None:
    assert sigmas(2).tolist() == [1.0, 0.5, 0.0]
    # 3 t / (1 + 2 t) at t = 1/2.
    assert sigmas(2, 3.0).tolist() == [1.0, 0.75, 0.0]
    for num_steps, shift in ((0, 1.0), (3, 0.0)):
        with pytest.raises(ValueError, match="num_steps"):
            sigmas(num_steps, shift)


def test_dynamic_shift_is_linear_in_the_tokens() -> None:
    assert dynamic_shift(256) == pytest.approx(math.exp(0.5)) and dynamic_shift(
        4096
    ) == pytest.approx(math.exp(1.15))
    assert dynamic_shift(2176, exponential=False) == pytest.approx((0.5 + 1.15) / 2)


def test_step_rules() -> None:
    assert stochastic_steps(StepsConfig(), 4, 0) == (0, 1, 2, 3)
    assert stochastic_steps(StepsConfig(kind="list", indices=(3, 1, 3)), 4, 0) == (1, 3)
    window = StepsConfig(kind="window", size=2, stride=1, every=3)
    starts = [stochastic_steps(window, 4, rollout)[0] for rollout in range(12)]
    assert starts == [0, 0, 0, 1, 1, 1, 2, 2, 2, 0, 0, 0]
    drawn = [
        stochastic_steps(StepsConfig(kind="random", size=2), 10, rollout, seed=7)
        for rollout in range(50)
    ]
    assert drawn == [
        stochastic_steps(StepsConfig(kind="random", size=2), 10, rollout, seed=7)
        for rollout in range(50)
    ]
    assert {step for steps in drawn for step in steps} == set(range(10)) and all(
        len(set(s)) == 2 for s in drawn
    )
    with pytest.raises(ValueError, match=r"\[4\] lie outside the 4 steps"):
        stochastic_steps(StepsConfig(kind="list", indices=(4,)), 4, 0)
    with pytest.raises(ValueError, match="more than the 3 steps"):
        stochastic_steps(window.model_copy(update={"size": 4}), 3, 0)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"kernel": "euler"}, "no log-probability"),
        ({"ode": "flow"}, "draws noise"),
        ({"kernel": "cps", "eta": 1.5}, "at most 1"),
        ({"steps": {"indices": [1]}}, "belongs to"),
        ({"steps": {"kind": "list"}}, "belongs to"),
        ({"etta": 1}, "Extra inputs"),
    ],
)
def test_a_mistake_in_the_sde_block_is_named(block: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        SdeConfig(**block)


def test_noise_is_the_same_in_every_process_and_batch() -> None:
    recipes = [NoiseRecipe(3, 5, f"prompt-7/{sibling}") for sibling in range(3)]
    whole = initial_noise(recipes, (2, 4, 4))
    assert torch.equal(initial_noise(recipes[1:2], (2, 4, 4))[0], whole[1])
    code = "from rl_core.sde import NoiseRecipe; print(NoiseRecipe(3, 5, 'prompt-7/1').seed)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert int(done.stdout) == recipes[1].seed
    seeds = {
        NoiseRecipe(base, rollout, str(one)).seed
        for base in range(4)
        for rollout in range(4)
        for one in range(9)
    }
    assert len(seeds) == 4 * 4 * 9
    assert not torch.equal(whole[0], whole[1])
    first, second = recipes[0].generator(), recipes[0].generator("steps")
    assert first.initial_seed() != second.initial_seed()
