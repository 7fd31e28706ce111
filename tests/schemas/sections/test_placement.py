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


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"ep_size": 3}, r"ep_size = 3 does not divide num_devices = 8; sizes .*: 1, 2, 4, 8"),
        ({"ep_size": 4, "shard_size": 2}, r"ep_size = 4 does not divide shard_size = 2; .*: 1, 2"),
        ({"ep_size": 2, "tp_size": 2}, r"ep_size = 2 with tp_size = 2: .* set one of them to 1"),
    ],
)
def test_experts_that_cannot_be_dealt_out_are_refused(sizes: dict[str, int], message: str):
    assert PlacementConfig(num_devices=8, ep_size=4, shard_size=4).num_replicas == 8
    with pytest.raises(ValidationError, match=message):
        PlacementConfig.model_validate({"num_devices": 8, **sizes})


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"fsdp": {"torch_compile": True}}, r"fsdp.torch_compile: true with placement.ep_size: 2"),
        ({"model": {"path": "model", "exact": True}}, r"model.exact: true with placement.ep_size"),
        (
            {"model": {"path": "model", "quantize": "nf4"}, "lora": {"rank": 4}},
            r"placement.ep_size: 2 deals out stacks of experts, and packed ones are not",
        ),
    ],
)
def test_settings_that_experts_on_other_ranks_do_not_fit_are_refused(
    blocks: dict[str, Any], message: str
):
    with pytest.raises(ValidationError, match=message):
        Recipe.model_validate(recipe(2, num_devices=2, ep_size=2) | blocks)
