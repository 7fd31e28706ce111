"""Sweeps: which runs there are, and that they are compared on one page."""

import pytest

from flows.sweep.grid import combinations, split_values, varied
from rl_core.errors import RecipeError


def test_the_last_key_changes_fastest():
    assert combinations(["algorithm.name=grpo,rloo", "seed=1,2"]) == [
        ["algorithm.name=grpo", "seed=1"],
        ["algorithm.name=grpo", "seed=2"],
        ["algorithm.name=rloo", "seed=1"],
        ["algorithm.name=rloo", "seed=2"],
    ]


def test_commas_inside_brackets_and_quotes_separate_nothing():
    assert split_values("[a,b],{c: 1, d: 2},'e,f'") == ["[a,b]", "{c: 1, d: 2}", "'e,f'"]


def test_runs_are_told_apart_by_what_differs():
    assert varied(combinations(["lora.rank=8", "seed=1,2"])) == ["seed=1", "seed=2"]


@pytest.mark.parametrize("text", ["seed", "=1", "seed=1,", "seed=1,,2"])
def test_an_assignment_that_cannot_be_read_is_named(text: str):
    with pytest.raises(RecipeError, match=repr(text).replace("'", ".")):
        combinations([text])


def test_a_sweep_is_bounded():
    with pytest.raises(RecipeError, match="these are 100 runs; a sweep has at most 64"):
        combinations([f"seed={','.join(map(str, range(100)))}"])
