"""Who needs siblings to learn: what an estimator says of itself is what it does, and a recipe
without is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_core.algorithms import algorithms
from rl_core.algorithms.advantages import AdvantageInputs, advantage_estimators
from rl_core.algorithms.requirements.group_size import learning_tracks
from rl_core.algorithms.requirements.trainers import WITHOUT_GROUPS
from rl_core.errors import RecipeError
from rl_core.runs.recipes import load_recipe

REWARDS_B = torch.tensor([0.0, 1.0, 3.0, 7.0], dtype=torch.float64)
MASK_BT = torch.ones(4, 3)
ONE_EACH = "rollout.samples_per_prompt=1"


@pytest.mark.parametrize("name", advantage_estimators.names())
def test_an_estimator_needs_siblings_where_rows_alone_get_no_advantage(name: str):
    estimator_cls, config = advantage_estimators.resolve({"name": name}, "algorithm.advantage")
    given: dict[str, Any] = {
        "values_BT": torch.zeros(4, 3),
        "greedy_rewards_B": torch.full((4,), 0.5),
        "rewards_by_key": {"part": REWARDS_B},
        "log_probs_BT": -torch.ones(4, 3),
        "sum_squared_probs_BT": torch.full((4, 3), 0.5),
    }
    advantages_BT, _ = estimator_cls(config)(
        AdvantageInputs(REWARDS_B, torch.arange(4), MASK_BT, **given)
    )
    assert estimator_cls.needs_siblings is (int(advantages_BT.count_nonzero()) == 0)


@pytest.mark.parametrize("name", algorithms.names())
def test_an_algorithm_needs_siblings_where_its_estimator_does(name: str):
    algorithm_cls, config = algorithms.resolve({"name": name}, "algorithm")
    algorithm = algorithm_cls(config)
    estimator = getattr(algorithm, "estimator", None)
    # A teacher compares no replies; where rewards weigh nothing, nothing else does.
    rewarded = getattr(config, "reward_weight", 1.0) > 0
    assert algorithm.needs_siblings is (
        estimator is not None and estimator.needs_siblings and rewarded
    )


PE_IMAGES = [
    "tracks.text.train=false",
    "tracks.images.train=true",
    "tracks.images.samples_per_rewrite=8",
]


@pytest.mark.parametrize(
    ("recipe", "overrides", "message"),
    [
        (
            "text",
            [],
            f"algorithm grpo compares .*set 2 or more, or use .* such as {WITHOUT_GROUPS}$",
        ),
        (
            "text",
            ["algorithm={name: reinforce_plus_plus, advantage: {name: rloo}}"],
            "reinforce_plus_plus compares",
        ),
        ("text", ["algorithm={name: dapo}"], "algorithm dapo compares"),
        ("vision", [], "compares"),
        ("diffusion", [], "algorithm diffusion_nft compares .*set 2 or more$"),
        ("pe", [], "algorithm dr_grpo compares"),
        ("unified", [], "algorithm grpo compares"),
    ],
)
def test_one_sample_of_a_prompt_is_refused_where_it_would_be_compared(
    recipe: str, overrides: list[str], message: str
):
    with pytest.raises(RecipeError, match=rf"rollout.samples_per_prompt is 1: .*{message}"):
        load_recipe(recipe, [ONE_EACH, *overrides])


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        ("text", [f"algorithm={{name: {WITHOUT_GROUPS}}}"]),
        ("text", ["algorithm={name: remax}"]),
        ("text", ["algorithm={name: ppo}"]),
        ("text", ["algorithm={name: grpo, advantage: {name: remax}}"]),
        ("pe", PE_IMAGES),
    ],
)
def test_one_sample_of_a_prompt_is_enough_where_nothing_is_compared(
    recipe: str, overrides: list[str]
):
    assert load_recipe(recipe, [ONE_EACH, *overrides]).rollout.samples_per_prompt == 1


def test_the_groups_of_a_track_are_those_that_its_trainer_compares():
    def sizes(name: str, *overrides: str) -> dict[str, int]:
        recipe = load_recipe(name, ["rollout.samples_per_prompt=4", *overrides])
        return {track.prefix: track.group_size for track in learning_tracks(recipe)}

    assert sizes("text") == {"": 4}
    assert sizes("pe", *PE_IMAGES) == {"images/": 8}
    assert sizes("unified", "unified.images.samples_per_plan=2") == {"text/": 4, "images/": 2}
    by_prompt = ["unified.images.samples_per_plan=2", "unified.images.compared=prompt"]
    assert sizes("unified", *by_prompt) == {"text/": 4, "images/": 8}
    assert sizes("unified", *by_prompt, "unified.images.weight=0") == {"text/": 4}
