"""What a recipe of the domain diffusion is refused for, by name, before anything is started."""

from __future__ import annotations

import pytest

from rl_core.errors import RecipeError
from rl_core.runs.recipes import load_recipe, parse_recipe

RECIPE = "smoke/diffusion"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["algorithm={name: grpo}"],
            "algorithm grpo trains tokens, domain diffusion has denoising steps; use flow_grpo",
        ),
        (
            ["rewards=[]"],
            "rewards: the domain diffusion has no environments; name at least one scorer",
        ),
        (["rewards=[{name: math}]"], "math scores text; this recipe's policy produces image"),
        (["diffusion.num_frames=9"], "this recipe's policy produces video"),
        (
            ["placement.sp_size=2", "placement.num_devices=2"],
            "placement.sp_size is 2: a diffusion model is neither cut",
        ),
        (
            ["placement.max_tokens_per_micro_batch=64"],
            "set placement.max_tokens_per_micro_batch to null",
        ),
        (["algorithm.kl={coef: 0.1, place: reward, kind: k3}"], "needs a KL in the reward"),
        (
            ["algorithm.sde={steps: {kind: list, indices: [4]}}"],
            "indices [4] lie outside the 4 steps",
        ),
        (
            ["algorithm.sde={kernel: cps, steps: {kind: list, indices: [3]}}"],
            "none of the 4 steps draws noise, so there is nothing to train",
        ),
        (
            ["diffusion.steps_per_forward=3"],
            "steps_per_forward 3 does not divide the 4 trained steps",
        ),
        (
            [
                "diffusion.steps_per_forward=2",
                "algorithm.loss={name: ppo_clip, aggregation: seq-mean-token-mean}",
            ],
            "weighs whole; use token-mean",
        ),
    ],
)
def test_what_steps_cannot_serve_is_refused_by_name(overrides: list[str], said: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load_recipe(RECIPE, overrides)
    assert said in str(caught.value)


def test_an_algorithm_of_steps_is_refused_where_there_are_tokens() -> None:
    with pytest.raises(
        RecipeError, match="algorithm flow_grpo trains denoising steps, domain text has tokens"
    ):
        load_recipe("smoke/text", ["algorithm={name: flow_grpo}"])


def test_nft_is_served_with_an_average_to_roll_out_with_and_refused_without() -> None:
    values = load_recipe(RECIPE).model_dump(mode="json") | {"algorithm": {"name": "diffusion_nft"}}
    with pytest.raises(RecipeError, match="samples with the moving average: set ema_lora"):
        parse_recipe(values)
    served = values | {"lora": {"rank": 4}, "ema_lora": {"rollout": True}}
    assert parse_recipe(served).ema is not None
    with pytest.raises(RecipeError, match=r"share_noise: .* all samples of a prompt would be one"):
        parse_recipe(served | {"diffusion": values["diffusion"] | {"share_noise": True}})


def test_nft_is_served_by_the_trained_policy_itself_but_not_beside_an_average() -> None:
    values = load_recipe(RECIPE).model_dump(mode="json")
    values["algorithm"] = {"name": "diffusion_nft", "old_policy": "current"}
    assert parse_recipe(values).ema is None
    averaged = values | {"lora": {"rank": 4}, "ema_lora": {"rollout": True}}
    with pytest.raises(RecipeError, match="old_policy is current, but the recipe's moving average"):
        parse_recipe(averaged)


@pytest.mark.parametrize("recipe", ["smoke/unified", "smoke/pe"])
def test_next_to_tokens_nft_has_the_trained_policy_alone(recipe: str) -> None:
    block = "unified" if recipe.endswith("unified") else "tracks"
    with pytest.raises(RecipeError, match=r"or algorithm\.old_policy: current"):
        load_recipe(recipe, [f"{block}.images.algorithm={{name: diffusion_nft}}"])
    load_recipe(recipe, [f"{block}.images.algorithm={{name: diffusion_nft, old_policy: current}}"])
