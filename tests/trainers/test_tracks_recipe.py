"""The block `tracks`: where it belongs, what it demands, and the job of the track `images` by
itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.dry_run import device_plan
from rl_core.errors import RecipeError
from rl_core.runs.recipes import load_recipe
from rl_core.runs.run_plan import starting_from
from schemas.domains import Domain


def apart(drawing: int, prompts: int) -> list[str]:
    """Overrides that give the diffusion model so many of four devices to itself, with eight
    rewrites of each prompt."""
    return [
        "placement.num_devices=4",
        f"tracks.images.num_devices={drawing}",
        f"training.prompts_per_step={prompts}",
        "rollout.samples_per_prompt=8",
    ]


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        ("text", ["domain=pe"], r"tracks: the domain pe needs the block tracks"),
        ("pe", ["domain=text"], r"tracks: the domain text has no tracks; leave the block out"),
        (
            "pe",
            ["tracks.text.train=false"],
            r"no track is trained: set text.train or images.train to true",
        ),
        (
            "pe",
            ["tracks.images.train=true", "tracks.images.samples_per_rewrite=1"],
            r"samples_per_rewrite is 1",
        ),
        (
            "pe",
            ["tracks.text.template=rewrite it"],
            r"must contain \{prompt\} once, got 'rewrite it'",
        ),
        ("pe", ["tracks.images.template='{rewrite} {rewrite}'"], r"must contain \{rewrite\} once"),
        (
            "pe",
            ["data.curriculum={floor: 0.1}"],
            r"data.curriculum: not in the domain pe.*leave it out",
        ),
        ("pe", ["ema_lora={decay: 0.9}"], r"ema_lora / ema_full: not in the domain pe"),
        ("pe", ["algorithm.name=remax"], r"algorithm remax needs a greedy reply"),
        ("pe", ["algorithm.name=ppo"], r"algorithm ppo needs a critic"),
        (
            "pe",
            ["algorithm.name=flow_grpo"],
            r"algorithm flow_grpo trains denoising steps, domain pe has tokens",
        ),
        ("pe", ["tracks.images.algorithm.name=grpo"], r"algorithm grpo trains tokens"),
        ("pe", ["tracks.images.algorithm.name=grop"], r"unknown algorithm 'grop'"),
        ("pe", ["rewards=[]"], r"name at least one scorer"),
        ("pe", ["diffusion.num_frames=9"], r"the domain pe draws pictures; set 1"),
        (
            "pe",
            ["tracks.images.num_devices=1"],
            r"num_devices = 1 of placement.num_devices = 1 leaves none to",
        ),
        (
            "pe",
            apart(3, prompts=1),
            r"8 rewrites do not divide into tracks.images.num_devices = 3 equal parts",
        ),
        (
            "pe",
            apart(1, prompts=8),
            r"64 rows do not divide into .*\(num_devices - tracks.images.num_devices\) = 3",
        ),
    ],
)
def test_a_recipe_that_cannot_work_is_refused(recipe: str, overrides: list[str], message: str):
    with pytest.raises(RecipeError, match=f"(?s){message}"):
        load_recipe(recipe, overrides)


def test_the_job_of_the_images_has_its_own_model_and_the_recipes_sampling():
    recipe = load_recipe("pe", ["tracks.images.lora={rank: 4}"])
    assert recipe.tracks is not None
    images = recipe.images
    wanted: dict[str, Any] = {
        "domain": Domain.DIFFUSION,
        "model": recipe.tracks.images.model,
        "lora": recipe.tracks.images.lora,
        "algorithm": recipe.tracks.images.algorithm,
        "diffusion": recipe.diffusion,
        "rewards": recipe.rewards,
        "seed": recipe.seed,
    }
    assert {name: getattr(images, name) for name in wanted} == wanted
    assert images.rows_per_prompt == recipe.tracks.images.samples_per_rewrite
    assert images.placement.micro_batch_size == recipe.tracks.images.micro_batch_size
    plain = load_recipe("diffusion")
    assert plain.images is plain


def test_each_job_has_its_own_devices_where_the_recipe_says_so():
    together, split = (
        load_recipe("pe", ["placement.num_devices=4"]),
        load_recipe("pe", apart(1, prompts=6)),
    )
    assert [job.placement.num_devices for job in (together.writing, together.images)] == [4, 4]
    assert [job.placement.num_devices for job in (split.writing, split.images)] == [3, 1]
    assert split.images.placement.micro_batch_size == together.images.placement.micro_batch_size
    assert device_plan(split).startswith(
        "4 cpu worker(s), 1 only draw on a private Ray cluster; 48 rows a step, 16 a"
    )


def test_an_enhancer_goes_on_from_all_that_was_registered(tmp_path: Path):
    recipe = load_recipe("pe")
    assert starting_from(recipe, str(tmp_path)).images.model == recipe.images.model
    (tmp_path / "images").mkdir()
    again = starting_from(recipe, str(tmp_path))
    assert again.model.path == str(tmp_path)
    assert again.images.model.path == str(tmp_path / "images")
    assert recipe.images.model.path == "embedded:tiny-sd3"
