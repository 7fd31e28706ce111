"""Sizes of the parallel dimensions: replicas are whole, and rows are dealt out to replicas."""

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.recipe import PlacementConfig, Recipe


@pytest.mark.parametrize(
    ("sizes", "replicas"),
    [({}, 8), ({"tp_size": 2}, 4), ({"sp_size": 8}, 1), ({"tp_size": 2, "sp_size": 2}, 2)],
)
def test_what_weights_and_sequences_leave_are_replicas(sizes: dict[str, int], replicas: int):
    assert PlacementConfig.model_validate({"num_devices": 8, **sizes}).num_replicas == replicas


def test_sizes_that_do_not_divide_the_devices_are_refused_with_those_that_do():
    with pytest.raises(
        ValidationError,
        match=r"tp_size x sp_size = 6 .* num_devices = 8; products that fit: 1, 2, 4, 8",
    ):
        PlacementConfig(num_devices=8, tp_size=2, sp_size=3)


def recipe(prompts_per_step: int, **placement: int) -> dict[str, Any]:
    return {
        "name": "sizes",
        "model": {"path": "model"},
        "data": {"train": ["a"], "eval": ["b"]},
        "training": {"prompts_per_step": prompts_per_step},
        "placement": placement,
    }


def test_prompts_divide_by_replicas_not_by_devices():
    Recipe.model_validate(recipe(2, num_devices=8, tp_size=2, sp_size=2))
    with pytest.raises(
        ValidationError, match=r"multiple of num_devices / \(tp_size x sp_size\) = 2,"
    ):
        Recipe.model_validate(recipe(3, num_devices=8, tp_size=2, sp_size=2))
