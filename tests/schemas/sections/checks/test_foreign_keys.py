"""Keys of other systems: each has an equivalent among the recipe's keys, and an error names it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from rl_core.algorithms import algorithms
from rl_core.algorithms.advantages import advantage_estimators
from rl_core.algorithms.losses import policy_losses
from rl_core.errors import RecipeError
from rl_core.runs.recipes import load_recipe
from rl_core.runtime.registry import Registry
from schemas.recipe import Recipe
from schemas.sections.checks.foreign_keys import foreign_key_lines, foreign_keys

PLUGINS: dict[str, Registry[Any]] = {
    "algorithm": algorithms,
    "algorithm.advantage": advantage_estimators,
    "algorithm.loss": policy_losses,
}
"""Blocks that are mappings in the recipe, and whose keys those are."""


def sections_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for one in get_args(annotation):
        yield from sections_of(one)


def keys_below(model: type[BaseModel], place: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{place}.{name}".lstrip(".")
        yield key
        for inner in sections_of(field.annotation):
            yield from keys_below(inner, key)
        if key in PLUGINS:
            registry = PLUGINS[key]
            for plugin in registry.names():
                yield from keys_below(registry.get(plugin).Config, key)


RECIPE_KEYS = set(keys_below(Recipe))


def test_every_equivalent_is_a_key_of_the_recipe():
    found = foreign_keys()
    assert len(found) > 80
    assert {one.system for one in found.values()} == {"UniRL", "SkyRL", "verl", "NeMo RL", "TRL"}
    assert not {key: one.here for key, one in found.items() if one.recipe_key not in RECIPE_KEYS}


def test_no_entry_hides_a_key_of_the_recipe():
    assert not foreign_keys().keys() & RECIPE_KEYS


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("data.train_data=[a.jsonl]", "data.train_data is SkyRL's name; here it is data.train"),
        (
            "training.prompts_per_rollout=4",
            "training.prompts_per_rollout is UniRL's name; here it is training.prompts_per_step",
        ),
        (
            "sampling.samples_per_prompt=4",
            "sampling.samples_per_prompt is UniRL's name; here it is rollout.samples_per_prompt",
        ),
        ("backend.lora_cfg.rank=4", "backend.lora_cfg.rank is UniRL's name; here it is lora.rank"),
        (
            "actor_rollout_ref.rollout.n=4",
            "actor_rollout_ref.rollout.n is verl's name; here it is rollout.samples_per_prompt",
        ),
        ("rollout.n=4", "rollout.n is verl's name; here it is rollout.samples_per_prompt"),
        (
            "algorithm.adv_estimator=gae",
            "algorithm.adv_estimator is verl's name; here it is algorithm.advantage (its name)",
        ),
        (
            "loss_fn.ratio_clip_max=0.3",
            "loss_fn.ratio_clip_max is NeMo RL's name; here it is algorithm.clip_high",
        ),
        (
            "actor_rollout_ref.rollout.top_k=-1",
            "actor_rollout_ref.rollout.top_k is verl's name; here it is rollout.top_k (leave it",
        ),
        (
            "generator.sampling_params.stop=[a]",
            "generator.sampling_params.stop is SkyRL's name; here it is rollout.stop (or",
        ),
        ("top_p=0.9", "top_p is TRL's name; here it is rollout.top_p"),
        (
            "num_generations=4",
            "num_generations is TRL's name; here it is rollout.samples_per_prompt",
        ),
        (
            "train_stack.block_class_names=[A]",
            "train_stack.block_class_names is UniRL's name; here it is backend (block_class_names",
        ),
        (
            "backend._target_=unirl.train.backend.fsdp.FSDPBackend",
            "backend._target_ is UniRL's name; here it is backend (target: pkg.module:Class)",
        ),
        (
            "rollout._target_=unirl.rollout.Engine",
            "rollout._target_ is UniRL's name; here it is engine (target: pkg.module:Class)",
        ),
        (
            "train_stack._target_=unirl.train.stack.TrainStack",
            "train_stack._target_ is UniRL's name; here it is stack (target: pkg.module:Class)",
        ),
    ],
)
def test_a_key_of_another_system_gets_its_equivalent(override: str, said: str):
    with pytest.raises(RecipeError) as caught:
        load_recipe("text", [override])
    assert str(caught.value).startswith(f"text.yaml: {said}")


def test_each_key_of_a_pasted_block_is_answered(tmp_path: Path):
    path = tmp_path / "pasted.yaml"
    path.write_text(
        "name: pasted\nmodel: {path: some/model}\ndata: {train: [a.jsonl], eval: [b.jsonl]}\n"
        "trainer: {total_epochs: 3, logger: console, balance_batch: true}\n",
        encoding="utf-8",
    )
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(path))
    epochs, logger, balance = str(caught.value).splitlines()
    assert "trainer.total_epochs is verl's name; here it is training.num_iterations" in epochs
    assert "trainer.logger has no equivalent here: everything goes to MLflow" in logger
    assert (
        "trainer.balance_batch has no equivalent here; docs/coming-from.md has those that do"
        in balance
    )


def test_pasted_parts_are_answered_together_with_the_rest():
    pasted = ["generator.n_samples_per_prompt=4", "trainer.epochs=3", "backend.lora_cfg.rank=8"]
    with pytest.raises(RecipeError) as caught:
        load_recipe("text", [*pasted, "backend.trainable_attr=model"])
    generator, backend, trainer = str(caught.value).splitlines()
    assert "generator.n_samples_per_prompt is SkyRL's name" in generator
    assert "backend.lora_cfg.rank is UniRL's name; here it is lora.rank" in backend
    assert "trainer.epochs is SkyRL's name; here it is training.num_iterations" in trainer


def test_a_plugin_block_without_a_name_is_read_too(tmp_path: Path):
    path = tmp_path / "pasted.yaml"
    path.write_text(
        "name: pasted\nmodel: {path: some/model}\ndata: {train: [a.jsonl], eval: [b.jsonl]}\n"
        "algorithm: {norm_adv_by_std_in_grpo: false}\n",
        encoding="utf-8",
    )
    with pytest.raises(
        RecipeError, match=r"is verl's name; here it is algorithm\.advantage\.norm_by_std"
    ):
        load_recipe(str(path))


def test_a_mapping_over_a_list_is_named():
    with pytest.raises(
        RecipeError, match=r"data\.train\.dataset_name is NeMo RL's name; here it is data\.train "
    ):
        load_recipe("text", ["data.train.dataset_name=some/set"])
    with pytest.raises(RecipeError, match=r"override 'data\.train\.whatever=1': "):
        load_recipe("text", ["data.train.whatever=1"])


@pytest.mark.parametrize(
    "place", ["rollout.temprature", "lora.rnk", "temp", "placement.temperature", "model.rank"]
)
def test_a_misspelt_key_is_not_another_systems(place: str):
    assert foreign_key_lines(place, 1) == []
