"""Every shipped recipe runs under every profile, on as many of its devices as the batches divide
into."""

import pytest

from rl_core.errors import RecipeError
from rl_core.runs.fitting_devices import fitted
from rl_core.runs.recipes import chain_names, load_recipe, profile_names, recipe_names

RECIPES = sorted(set(recipe_names()) - set(chain_names()))


@pytest.mark.parametrize("profile", profile_names())
def test_every_recipe_loads_under_every_profile(profile: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("RL_TRAIN_STORAGE", raising=False)
    for name in RECIPES:
        placed = load_recipe(name, profile=profile).placement
        per_node = placed.devices_per_node or placed.num_devices
        assert placed.num_devices <= per_node or placed.num_devices % per_node == 0


def test_a_small_recipe_takes_a_part_of_a_large_profile_and_says_so():
    notes: list[str] = []
    recipe = load_recipe("text", profile="many_nodes", note=notes.append)
    assert recipe.placement.num_devices == 8
    assert [note.partition(", ")[0] for note in notes] == [
        "text runs on 8 of the 32 devices of profile many_nodes"
    ]
    load_recipe("text", profile="one_node", note=notes.append)
    load_recipe("text", ["placement.num_devices=4"], "many_nodes", notes.append)
    assert len(notes) == 1, "nothing is idle, or the user chose"


def test_a_number_that_the_user_gives_is_not_changed():
    with pytest.raises(RecipeError, match="prompts_per_step = 8 must be a multiple of"):
        load_recipe("text", ["placement.num_devices=32"], "many_nodes")


def test_a_run_goes_on_with_the_most_devices_that_suit_it():
    recipe = load_recipe("text", ["placement.num_devices=8", "placement.min_devices=3"])
    smaller = fitted(recipe, 7, 3)
    assert (smaller.placement.num_devices, smaller.placement.min_devices) == (4, 3)
    with pytest.raises(RecipeError, match="no number of devices from 5 to 7"):
        fitted(recipe, 7, 5)


def test_nodes_are_whole():
    with pytest.raises(RecipeError, match="num_devices = 12 is no multiple of devices_per_node"):
        load_recipe("text", ["placement.num_devices=12", "placement.devices_per_node=8"])
    with pytest.raises(RecipeError, match="min_devices = 3 is more than num_devices = 2"):
        load_recipe("text", ["placement.num_devices=2", "placement.min_devices=3"])
