"""Every shipped recipe parses, and a mistake in one is named with its place and what would be
right."""

from pathlib import Path

import pytest

from rl_core.algorithms.presets import Grpo
from rl_core.errors import RecipeError
from rl_core.runs.recipes import (
    dump_recipe,
    load_recipe,
    parse_recipe,
    profile_names,
    recipe_names,
    recorded_values,
)

MINIMAL = "name: mine\nmodel: {path: some/model}\ndata: {train: [a.jsonl], eval: [b.jsonl]}\n"


class OwnAlgorithm(Grpo):
    """A user's class outside the project."""

    class Config(Grpo.Config):
        """Settings of `OwnAlgorithm`."""

        sharpness: float = 1.0
        """A key no other algorithm has."""


class TakesOneStep(Grpo):
    """A user's class that knows no old policy."""

    def __init__(self, config: Grpo.Config) -> None:
        super().__init__(config)
        self.supports_multi_update = False


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def refusal(recipe: str, *overrides: str, profile: str | None = None) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(recipe, overrides, profile)
    return str(caught.value)


@pytest.mark.parametrize("profile", profile_names())
@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_parses_with_every_profile(name: str, profile: str):
    # A recipe's batch need not fit 32 devices; this one is a multiple of every profile's.
    recipe = load_recipe(name, ["training.prompts_per_step=32"], profile)
    assert recipe.placement.device == ("cpu" if profile == "cpu" else "cuda")
    assert (
        recipe.placement.num_devices
        == {"cpu": 1, "one_gpu": 1, "one_node": 8, "many_nodes": 32}[profile]
    )


@pytest.mark.parametrize("name", recipe_names())
def test_every_shipped_recipe_fits_one_device_as_it_is(name: str):
    assert load_recipe(name).placement.num_devices == 1
    assert load_recipe(name, profile="one_gpu").placement.device == "cuda"


@pytest.mark.parametrize("name", recipe_names())
def test_a_dumped_recipe_loads_as_the_same_recipe(name: str, tmp_path: Path):
    recipe = load_recipe(name)
    assert load_recipe(written(tmp_path, dump_recipe(recipe))) == recipe


@pytest.mark.parametrize(
    ("override", "place", "meant"),
    [
        ("rolout.temperature=1", "rolout", "rollout"),
        ("profil=cpu", "profil", "profile"),
        ("rollout.temprature=1", "rollout.temprature", "temperature"),
        ("lora.rnk=4", "lora.rnk", "rank"),
        ("algorithm.clip_hgh=0.28", "algorithm.clip_hgh", "clip_high"),
        ("environments.reasoning_gym.anwser=x", "environments.reasoning_gym.anwser", "answer"),
        ("data.train=[{task: chain_sum, size: 3, sede: 1}]", "data.train.0.sede", "seed"),
    ],
)
def test_misspelt_key_names_its_nearest_neighbour(override: str, place: str, meant: str):
    assert refusal("text", override) == f"text.yaml: {place}: unknown key (did you mean {meant!r}?)"


@pytest.mark.parametrize(
    ("override", "place", "value"),
    [
        ("rollout.temperature=-1", "rollout.temperature", "-1"),
        ("training.num_iterations=0", "training.num_iterations", "0"),
        ("algorithm.clip_high=-0.5", "algorithm.clip_high", "-0.5"),
        ("environments.reasoning_gym.max_turns=0", "environments.reasoning_gym.max_turns", "0"),
        ("data.train=[{task: chain_sum, size: -3}]", "data.train.0.size", "-3"),
    ],
)
def test_value_out_of_range_names_key_and_value(override: str, place: str, value: str):
    message = refusal("text", override)
    assert message.startswith(f"text.yaml: {place}: ")
    assert message.endswith(f"got {value}")


def test_missing_key_is_named(tmp_path: Path):
    path = written(tmp_path, "name: mine\ndata: {train: [a.jsonl], eval: [b.jsonl]}\n")
    assert refusal(path) == "mine.yaml: model: missing; this key must be given"


def test_unknown_names_name_the_nearest():
    assert "unknown recipe 'txt' (did you mean 'text'?)" in refusal("txt")
    assert "unknown profile 'one_gpuu' (did you mean 'one_gpu'?)" in refusal(
        "text", profile="one_gpuu"
    )
    assert "unknown algorithm 'grop' (did you mean 'grpo'?)" in refusal(
        "text", "algorithm.name=grop"
    )
    assert "unknown environment 'gsm9k' (did you mean 'gsm8k'?)" in refusal(
        "text", "environments.gsm9k.max_turns=1"
    )
    assert "recipe file nowhere/mine.yaml: no such file" in refusal("nowhere/mine.yaml")


def test_environment_variable_or_its_default_fills_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = written(tmp_path, MINIMAL.replace("some/model", "'${oc.env:MY_TEST_MODEL,the/default}'"))
    monkeypatch.delenv("MY_TEST_MODEL", raising=False)
    assert load_recipe(path).model.path == "the/default"
    monkeypatch.setenv("MY_TEST_MODEL", "from/environment")
    assert load_recipe(path).model.path == "from/environment"


def test_environment_variable_fills_a_profile_value(monkeypatch: pytest.MonkeyPatch):
    overrides = ["training.prompts_per_step=32"]
    assert load_recipe("text", overrides, "many_nodes").placement.ray_address == "auto"
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert load_recipe("text", overrides, "many_nodes").placement.ray_address == "head:6379"


def test_missing_environment_variable_without_default_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("MY_TEST_MODEL", raising=False)
    message = refusal(written(tmp_path, MINIMAL.replace("some/model", "'${oc.env:MY_TEST_MODEL}'")))
    assert "model.path: Environment variable 'MY_TEST_MODEL' not found" in message


def test_dotted_overrides_win_over_the_recipe_and_the_profile():
    recipe = load_recipe(
        "text", ["algorithm.clip_high=0.28", "seed=7", "placement.micro_batch_size=2"], "one_gpu"
    )
    assert (recipe.algorithm["clip_high"], recipe.algorithm["name"]) == (0.28, "grpo")
    assert (recipe.seed, recipe.placement.micro_batch_size, recipe.placement.device) == (
        7,
        2,
        "cuda",
    )


def test_profile_named_in_the_recipe_is_used(tmp_path: Path):
    path = written(tmp_path, MINIMAL + "profile: one_gpu\n")
    assert load_recipe(path).placement.device == "cuda"
    assert load_recipe(path, profile="cpu").placement.device == "cpu"


@pytest.mark.parametrize("override", ["foo", "=3", "seed=[1", "seed=${"])
def test_malformed_override_is_quoted(override: str):
    assert refusal("text", override).startswith(f"override {override!r}")


@pytest.mark.parametrize("text", ["- a list\n", "name: [unclosed\n", MINIMAL + "placement: 3\n"])
def test_file_of_the_wrong_form_is_refused_by_name(text: str, tmp_path: Path):
    assert "mine.yaml: " in refusal(written(tmp_path, text))


def test_own_algorithm_is_checked_by_its_own_config(tmp_path: Path):
    target = f"algorithm: {{target: '{__name__}:OwnAlgorithm', %s}}\n"
    assert (
        load_recipe(written(tmp_path, MINIMAL + target % "sharpness: 2.0")).algorithm["sharpness"]
        == 2.0
    )
    message = refusal(written(tmp_path, MINIMAL + target % "sharpnes: 2.0"))
    assert message == "mine.yaml: algorithm.sharpnes: unknown key (did you mean 'sharpness'?)"


def test_algorithm_target_that_is_no_class_is_refused(tmp_path: Path):
    block = "algorithm: {target: '%s'}\n"
    assert "cannot be imported" in refusal(
        written(tmp_path, MINIMAL + block % "no_such_package:Thing")
    )
    assert "is not a class" in refusal(written(tmp_path, MINIMAL + block % "os.path:join"))
    assert "not both" in refusal("text", "algorithm.target=os.path:join")


def test_a_plug_in_takes_the_place_of_another_with_its_settings():
    recipe = "smoke/diffusion"
    flow_grpo = load_recipe(recipe).algorithm
    assert flow_grpo["name"] == "flow_grpo" and len(flow_grpo) > 1
    assert load_recipe(recipe, ["algorithm={name: mix_grpo}"]).algorithm == {"name": "mix_grpo"}
    merged = load_recipe(recipe, ["algorithm.name=mix_grpo"]).algorithm
    assert merged == flow_grpo | {"name": "mix_grpo"}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ("placement.tp_size=2", "placement.num_devices=2"),
            "placement.tp_size is 2: a vision-language model",
        ),
        (
            ("placement.max_tokens_per_micro_batch=64",),
            "set placement.max_tokens_per_micro_batch to null",
        ),
    ],
)
def test_a_placement_that_cuts_or_packs_a_model_that_sees_is_refused(
    overrides: tuple[str, ...], said: str
):
    assert said in refusal("smoke/vision", *overrides)


def test_rows_that_do_not_divide_are_refused_with_the_numbers():
    message = refusal("text", "rollout.samples_per_prompt=3", "training.num_updates_per_batch=5")
    assert (
        "= 24 rows do not divide into num_updates_per_batch x num_devices = 5 equal parts"
        in message
    )
    message = refusal("mpo", "training.prompts_per_step=3", "training.num_updates_per_batch=2")
    assert (
        "prompts_per_step = 3 pairs do not divide into num_updates_per_batch x num_devices = 2"
        in message
    )
    message = refusal("text", "placement.num_devices=16")
    assert "prompts_per_step = 8 must be a multiple of num_devices = 16" in message


@pytest.mark.parametrize("key", ["num_updates_per_batch", "num_epochs"])
@pytest.mark.parametrize(
    ("recipe", "algorithm", "name"),
    [
        ("text", "algorithm={name: gpg}", "gpg"),
        ("text", "algorithm={name: grpo, loss: {name: reinforce}}", "grpo"),
        ("text", "algorithm={name: ppo, loss: {name: reinforce}}", "ppo"),
        ("vision", "algorithm={name: gpg}", "gpg"),
        ("scale/sd3-nft-ocr", "algorithm.beta=1", "diffusion_nft"),
        ("smoke/diffusion", "algorithm.loss={name: reinforce}", "flow_grpo"),
        ("diffusion", "algorithm.beta=1", "diffusion_nft"),
        ("pe", "algorithm={name: gpg}", "gpg"),
        ("pe", "tracks.images.algorithm.loss={name: reinforce}", "flow_grpo"),
        ("unified", "algorithm={name: gpg}", "gpg"),
        ("smoke/unified", "unified.images.algorithm.beta=1", "diffusion_nft"),
        (
            "text",
            "algorithm={target: 'tests.runs.test_recipes:TakesOneStep'}",
            "tests.runs.test_recipes:TakesOneStep",
        ),
        (
            "mpo",
            "algorithm={target: 'tests.runs.test_recipes:TakesOneStep'}",
            "tests.runs.test_recipes:TakesOneStep",
        ),
    ],
)
def test_several_steps_on_one_rollout_are_refused_where_the_algorithm_takes_one(
    recipe: str, algorithm: str, name: str, key: str
):
    assert load_recipe(recipe, [algorithm])
    message = refusal(recipe, algorithm, f"training.{key}=2")
    assert (
        f"training.{key} is 2, but algorithm {name} does not correct for the policy having moved"
        in message
    )


@pytest.mark.parametrize("recipe", ["text", "vision", "smoke/diffusion", "pe", "smoke/pe", "mpo"])
def test_several_steps_on_one_rollout_are_taken_where_the_algorithm_corrects(recipe: str):
    loaded = load_recipe(recipe, ["training.num_updates_per_batch=2", "training.num_epochs=3"])
    assert loaded.updates_per_step == 6


def test_a_key_of_former_days_names_what_to_write_instead():
    message = refusal("text", "training.num_mini_batches=2")
    assert message == (
        "text.yaml: training.num_mini_batches: renamed: use num_updates_per_batch for the "
        "optimiser steps one rollout is cut into, and num_epochs for passes over all its rows"
    )


def test_what_an_earlier_run_wrote_down_is_read_in_the_present_keys():
    training = {"num_iterations": 3, "num_mini_batches": 2, "num_updates_per_batch": 4}
    values = {**load_recipe("text").model_dump(mode="json"), "training": training}
    read = parse_recipe(recorded_values(values)).training
    assert (read.num_iterations, read.num_updates_per_batch, read.num_epochs) == (3, 2, 4)
    recipe = load_recipe("text", ["training.num_updates_per_batch=2", "training.num_epochs=3"])
    assert parse_recipe(recorded_values(recipe.model_dump(mode="json"))) == recipe
