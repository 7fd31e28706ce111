"""The block `unified`: where it belongs, what it demands, and the job of its stage `images` by
itself."""

from __future__ import annotations

import pytest

from rl_core.errors import RecipeError
from rl_core.runs.recipes import load_recipe
from schemas.domains import Domain


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("text", ["domain=unified"], r"unified: the domain unified needs the block unified"),
        ("pe", ["unified={}"], r"unified: the domain pe has no unified; leave the block out"),
        (
            "unified",
            ["unified.text.weight=0", "unified.images.weight=0"],
            r"no stage is trained: set text.weight or",
        ),
        ("unified", ["unified.text.weight=-1"], r"unified.text.weight"),
        (
            "unified",
            ["unified.images.samples_per_plan=1"],
            r"samples_per_plan is 1.*images.compared: prompt",
        ),
        (
            "unified",
            ["unified.text.template=plan it"],
            r"must contain \{prompt\} once, got 'plan it'",
        ),
        (
            "unified",
            ["data.curriculum={floor: 0.1}"],
            r"data.curriculum: not in the domain unified.*leave it out",
        ),
        ("unified", ["ema_full={decay: 0.9}"], r"ema_lora / ema_full: not in the domain unified"),
        (
            "unified",
            ["placement.tp_size=2", "placement.num_devices=2"],
            r"placement.tp_size: not in the domain unified",
        ),
        ("unified", ["algorithm.name=remax"], r"algorithm remax needs a greedy reply"),
        (
            "unified",
            ["algorithm.name=flow_grpo"],
            r"trains denoising steps, domain unified has tokens",
        ),
        ("unified", ["unified.images.algorithm={name: grpo}"], r"algorithm grpo trains tokens"),
        ("unified", ["unified.images.algorithm.name=grop"], r"unknown algorithm 'grop'"),
        ("unified", ["rewards=[]"], r"name at least one scorer"),
        ("unified", ["diffusion.num_frames=9"], r"the domain unified draws pictures; set 1"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(recipe: str, overrides: list[str], message: str):
    with pytest.raises(RecipeError, match=f"(?s){message}"):
        load_recipe(recipe, overrides)


def test_one_picture_of_each_plan_is_enough_where_plans_are_compared_or_only_text_learns():
    for overrides in (["unified.images.compared=prompt"], ["unified.images.weight=0"]):
        recipe = load_recipe("unified", ["unified.images.samples_per_plan=1", *overrides])
        assert recipe.images.rows_per_prompt == 1


def test_the_job_of_the_images_is_that_of_the_same_model():
    recipe = load_recipe("unified", ["lora={rank: 4}", "unified.images.micro_batch_size=5"])
    assert recipe.unified is not None
    images = recipe.images
    assert (images.domain, images.unified) == (Domain.DIFFUSION, None)
    assert images.algorithm == recipe.unified.images.algorithm
    assert images.placement.micro_batch_size == 5
    for name in ("model", "lora", "fsdp", "optimizer", "scheduler", "diffusion", "rewards", "seed"):
        assert getattr(images, name) == getattr(recipe, name)
