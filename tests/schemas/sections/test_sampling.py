"""Sampling settings: bounds, combinations that have no effect or no log-probabilities, and the
identity of a recipe that leaves them at their defaults."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from rl_core.errors import RecipeError
from rl_core.runs.recipes import load_recipe
from rl_core.runs.run_folder import run_key
from schemas.sections.rollout import RolloutConfig
from schemas.sections.sampling import (
    EvaluationSampling,
    SamplingConfig,
    without_default_sampling,
)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["rollout.top_p=0"], r"rollout\.top_p: Input should be greater than 0, got 0"),
        (["rollout.top_p=1.1"], r"rollout\.top_p: Input should be less than or equal to 1"),
        (["rollout.top_k=0"], r"rollout\.top_k: Input should be greater than or equal to 1"),
        (["rollout.top_k=-1"], r"rollout\.top_k: Input should be greater than or equal to 1"),
        (["rollout.min_p=2"], r"rollout\.min_p: Input should be less than or equal to 1"),
        (["rollout.repetition_penalty=0"], r"rollout\.repetition_penalty: Input should be greater"),
        (["rollout.stop=['']"], r"rollout\.stop: a stop string is empty, and would end every"),
        (["rollout.stop=['a','a']"], r"rollout\.stop: the stop string 'a' is listed twice"),
        (["rollout.stop=</a>"], r"rollout\.stop: Input should be a valid list"),
        (
            ["rollout.min_new_tokens=99"],
            r"rollout: min_new_tokens 99 is more than max_new_tokens 8: lower it",
        ),
        (
            ["rollout.top_p=0.9", "rollout.min_p=0.1"],
            r"rollout: top_p 0\.9 and min_p 0\.1 both leave out improbable tokens",
        ),
        (["evaluation.top_p=0.9"], r"evaluation: top_p changes no greedy reply: set temperature"),
        (["evaluation.temperature=0.001"], r"evaluation\.temperature: must be 0 \(greedy\) or at"),
        (
            ["rollout.top_p=0.9", "placement.num_devices=2", "placement.sp_size=2"],
            r"rollout\.top_p: with placement\.sp_size 2, ranks .*; set sp_size to 1, or leave it",
        ),
        (["environments.reasoning_gym.stop=['']"], r"environments\.reasoning_gym\.stop: a stop"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_setting_that_makes_no_sense_is_refused(overrides: list[str], said: str):
    with pytest.raises(RecipeError, match=said):
        load_recipe("smoke/text", overrides)


@pytest.mark.parametrize(
    ("recipe", "override", "said"),
    [
        ("smoke/diffusion", "rollout.top_k=5", "no tokens are sampled in the domain diffusion"),
        ("smoke/mpo", "evaluation.temperature=1", "no tokens are sampled in the domain preference"),
        ("smoke/unified", "rollout.stop=[a]", "a plan in the domain unified is no text"),
    ],
)
def test_a_domain_without_a_use_for_a_setting_refuses_it(recipe: str, override: str, said: str):
    with pytest.raises(RecipeError, match=said):
        load_recipe(recipe, [override])


def test_a_stop_string_of_unfinished_characters_is_refused():
    with pytest.raises(ValidationError, match=r"U\+FFFD"):
        SamplingConfig(stop=["a\ufffd"])


def test_a_setting_changes_the_identity_of_a_run_and_its_default_does_not():
    plain = run_key(load_recipe("smoke/text"), "cache")
    same = ["rollout.top_p=1", "evaluation.temperature=0", "rollout.min_new_tokens=0"]
    assert run_key(load_recipe("smoke/text", same), "cache") == plain
    others = [
        run_key(load_recipe("smoke/text", [one]), "cache")
        for one in ("rollout.top_p=0.9", "rollout.stop=[a]", "evaluation.temperature=0.6")
    ]
    assert len({plain, *others}) == 4


def test_a_recipe_at_its_defaults_has_the_values_that_it_had_before_these_settings():
    values = without_default_sampling(load_recipe("smoke/text").model_dump(mode="json"))
    named = set(EvaluationSampling.model_fields) - {"temperature"}
    assert not named & values["rollout"].keys()
    assert not (named | {"temperature"}) & values["evaluation"].keys()
    # The temperature of rollouts is older.
    assert values["rollout"]["temperature"] == 1.0


def test_what_is_altered_is_named():
    config = RolloutConfig(top_k=5, stop=["x"], temperature=0.5)
    assert (config.altered, config.leaves_out) == (["top_k", "stop"], ["top_k"])
    assert not config.keeps_all and not config.cuts_nothing
    assert RolloutConfig(stop=["x"], temperature=0.5).keeps_all
    assert EvaluationSampling().is_greedy
    assert not EvaluationSampling(temperature=0.6).is_greedy


def test_a_recipe_file_names_stop_strings_of_its_environments(tmp_path: Path):
    recipe = load_recipe("smoke/text", ["environments.reasoning_gym.stop=['</answer>','###']"])
    assert recipe.environments["reasoning_gym"]["stop"] == ["</answer>", "###"]
