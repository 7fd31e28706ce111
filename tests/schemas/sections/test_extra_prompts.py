"""`rollout.extra_prompts` is refused where nothing can be given up, or not all rows begin
together."""

from typing import Any

import pytest
from pydantic import ValidationError

from schemas.recipe import Recipe

BESIDE: dict[str, Any] = {"num_devices": 2, "rollout_devices": 1}


def recipe(**blocks: Any) -> Recipe:
    rollout = {"extra_prompts": 2} | blocks.pop("rollout", {})
    data = {"train": ["rows.jsonl"], "eval": ["held_out.jsonl"]}
    given = {"name": "racing", "model": {"path": "model"}, "data": data}
    return Recipe.model_validate(given | {"rollout": rollout} | blocks)


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (
            {"rollout": {"tokens_per_request": 16}},
            r"tokens_per_request: 16 has no effect but with rollout.engine: vllm or server",
        ),
        (
            {"rollout": {"engine": "vllm", "max_new_tokens": 64}, "placement": BESIDE},
            r"extra_prompts: with rollout.tokens_per_request: 64 a reply of max_new_tokens: 64 is",
        ),
        (
            {"placement": {"num_devices": 2, "sp_size": 2}},
            r"extra_prompts: with placement.sp_size: 2 each rank samples a part",
        ),
        (
            {"rollout": {"extra_prompts": 3}, "placement": {"num_devices": 2}},
            r"rollout.extra_prompts: 3 prompts do not divide among 2 ranks that sample",
        ),
        (
            {
                "rollout": {"engine": "dedicated"},
                "placement": {"num_devices": 3, "rollout_devices": 2},
                "training": {"prompts_per_step": 7},
            },
            r"training.prompts_per_step: 7 prompts do not divide among 2 ranks that sample",
        ),
        (
            {"rollout": {"max_batch_size": 79}},
            r"are 80 rows of a rank, which have to begin together; raise rollout.max_batch_size",
        ),
        ({"domain": "diffusion"}, r"extra_prompts: not in the domain diffusion; leave it out"),
    ],
)
def test_where_it_cannot_have_its_effect_it_is_refused(
    blocks: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**blocks)


@pytest.mark.parametrize(
    "blocks",
    [
        {},
        {"placement": {"num_devices": 2}},
        {"rollout": {"engine": "dedicated"}, "placement": BESIDE},
        {"rollout": {"max_batch_size": 80}},
    ],
)
def test_elsewhere_it_is_taken(blocks: dict[str, Any]) -> None:
    assert recipe(**blocks).rollout.extra_prompts == 2
