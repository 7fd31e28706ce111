"""Loading of a recipe: YAML, environment interpolation, profile, dotted overrides, plug-in
checks."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from rl_core.errors import RecipeError, UserError
from rl_core.runs.fitting_devices import fewer_devices, idle_devices
from rl_core.runs.recipe_paths import paths_from_recipe
from rl_core.runtime.own_packages import search_beside
from rl_core.runtime.registry import describe_validation_error, nearest
from rl_core.runtime.secrets import redact_values
from rl_core.runtime.settings_files import DEPLOYMENTS, merge_overrides, read_yaml, resolved
from rl_core.runtime.user_paths import no_file, user_path
from rl_core.tracking.also.needs import check_trackers
from rl_core.train.needs import check_packages
from schemas.recipe import Recipe
from schemas.sections.checks.foreign_keys import foreign_key_lines
from schemas.sections.parts import PARTS, USUAL_OPTIONS
from schemas.sections.placement import PlacementConfig
from schemas.sections.preference import PairSource

_STAGES = re.compile(rb"^stages\s*:", re.MULTILINE)


def recipe_names() -> list[str]:
    """Return the names of the recipes that ship with the project (`text`, `smoke/text`, ...)."""
    return [name for name, path in _shipped().items() if not has_stages(path)]


def chain_names() -> list[str]:
    """Return the names of the chains of recipes that ship with the project."""
    return [name for name, path in _shipped().items() if has_stages(path)]


def has_stages(path: Path) -> bool:
    """Return True if a file holds a chain of recipes, by its key `stages`; it need not be valid."""
    try:
        return _STAGES.search(path.read_bytes()) is not None
    except OSError:
        return False  # said by whoever reads it


def _shipped() -> dict[str, Path]:
    root = DEPLOYMENTS / "recipes"
    recipes: dict[str, Path] = {}
    for path in sorted(root.rglob("*.yaml")):
        recipes[str(path.relative_to(root).with_suffix(""))] = path
    return recipes


def profile_names() -> list[str]:
    """Return the names of the placement profiles that ship with the project."""
    return sorted(path.stem for path in (DEPLOYMENTS / "profiles").glob("*.yaml"))


def find_recipe(name_or_path: str) -> Path:
    """Return the file of a shipped recipe or of a path. Raises: RecipeError naming the nearest
    known one."""
    if (shipped := _shipped().get(name_or_path)) is not None:
        return shipped
    path = user_path(name_or_path)
    if path.suffix.lower() in {".yaml", ".yml"}:
        if path.is_file():
            return path
        raise RecipeError(f"recipe file {path}: {no_file(path)}")
    raise RecipeError(
        f"unknown recipe {name_or_path!r}{nearest(name_or_path, [*_shipped()])}, or give a "
        ".yaml path"
    )


def load_recipe(
    name_or_path: str,
    overrides: Sequence[str] = (),
    profile: str | None = None,
    note: Callable[[str], None] | None = None,
) -> Recipe:
    """Load a recipe with its profile's placement and the overrides on top, and check every plug-in
    block. Relative paths in it are those of files beside it, if there are such, and so are the
    modules of the classes that it names.

    Args: overrides: dotted assignments such as `algorithm.clip_high=0.28`. profile: a profile's
    name; unset takes the recipe's own `profile` key, else `cpu`. note: is told of devices of the
    profile that the recipe leaves idle.
    Raises: RecipeError naming file, key, value and what would be right.
    """
    path = find_recipe(name_or_path)
    if has_stages(path):
        raise RecipeError(
            f"{path.name}: stages: this is a chain of recipes, and one recipe is wanted; name that "
            "of a stage"
        )
    if not path.is_relative_to(DEPLOYMENTS):
        search_beside(path)
    written = resolved(
        merge_overrides(paths_from_recipe(read_yaml(path), path), overrides, path), path
    )
    named = written.pop("profile", None)
    placement = written.get("placement")
    placement = {} if placement is None else placement
    if not isinstance(placement, dict):
        raise RecipeError(f"{path.name}: placement: expected a mapping of keys, got {placement!r}")
    wanted = next((one for one in (profile, named) if one is not None), "cpu")
    of_profile = _read_profile(str(wanted), path.name)
    written["placement"] = {**of_profile, **placement}
    if "num_devices" in placement:
        return parse_recipe(written, where=path.name)
    # A profile says what a machine has; a recipe with small batches uses a part of it.
    most = PlacementConfig.model_validate(of_profile).num_devices
    recipe = parse_recipe(fewer_devices(written, most), where=path.name)
    if note is not None and recipe.placement.num_devices < most:
        note(idle_devices(recipe, str(wanted), most))
    return recipe


def parse_recipe(values: dict[str, object], where: str = "recipe") -> Recipe:
    """Build a recipe from plain values, and check every plug-in block. Raises: RecipeError."""
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        described = [describe_validation_error(error, "", Recipe, "profile")]
        raise RecipeError(
            _located("\n".join(described + _foreign_keys_of_parts(values)), where)
        ) from error
    try:
        _check_plugins(recipe)
    except UserError as error:
        raise RecipeError(_located(str(error), where)) from error
    return recipe


def recorded_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a recipe that a run recorded, with renamed keys updated.

    Registered models and reports outlive a key's name: before `training.num_epochs` existed, passes
    over all rows were `num_updates_per_batch`, and mini-batches `num_mini_batches`.
    """
    training = dict(values.get("training") or {})
    if "num_mini_batches" in training:
        training["num_epochs"] = training.get("num_updates_per_batch", 1)
        training["num_updates_per_batch"] = training.pop("num_mini_batches")
    return {**values, "training": training}


def shown_values(recipe: Recipe) -> dict[str, Any]:
    """Return the fully resolved recipe as plain values, without passwords and tokens, so that it
    may be stored."""
    return redact_values(recipe.model_dump(mode="json"))


def dump_recipe(recipe: Recipe) -> str:
    """Return the fully resolved recipe as YAML, without passwords and tokens."""
    return yaml.safe_dump(shown_values(recipe), sort_keys=False, allow_unicode=True)


def _check_plugins(recipe: Recipe) -> None:
    from rl_core.algorithms import algorithms
    from rl_core.algorithms.flow_sft import FlowSft
    from rl_core.algorithms.requirements.trainers import (
        check_group_size,
        check_multi_update,
        check_serves_agents,
        check_serves_answers,
        check_serves_scores,
        check_serves_steps,
        check_serves_tokens,
        check_serves_tracks,
        named,
    )
    from rl_core.data.order.source_of_recipe import source_class
    from rl_core.envs.agent import is_agent
    from rl_core.envs.registration import config_class, own_options, spec
    from rl_core.rewards import Modality, resolve_scorers

    updates = recipe.training.num_updates_per_batch, recipe.training.num_epochs
    algorithm_cls, algorithm_config = algorithms.resolve(recipe.algorithm, "algorithm")
    check_multi_update(algorithm_cls(algorithm_config), *updates, named(recipe))
    produced = Modality.TEXT
    if recipe.has_answers:
        check_serves_answers(algorithm_cls(algorithm_config), recipe)
    if recipe.domain.traits.samples_tokens:
        check_serves_tokens(algorithm_cls(algorithm_config), recipe)
    if recipe.domain.traits.gives_scores:
        check_serves_scores(algorithm_cls(algorithm_config), recipe)
    if recipe.tracks is not None or recipe.unified is not None:
        check_serves_tracks(algorithm_cls(algorithm_config), recipe)
    if recipe.draws:
        painter = recipe.images
        block = ""
        if painter is not recipe:
            block = "tracks.images." if recipe.unified is None else "unified.images."
        painter_cls, painter_config = algorithms.resolve(painter.algorithm, f"{block}algorithm")
        check_serves_steps(painter_cls(painter_config), painter)
        check_multi_update(painter_cls(painter_config), *updates, named(painter))
        if painter is not recipe and painter_cls is FlowSft:
            raise RecipeError(
                f"{block}algorithm: flow_sft learns given pictures, and the domain "
                f"{recipe.domain} draws its own; use flow_grpo"
            )
        produced = Modality.VIDEO if recipe.diffusion.num_frames > 1 else Modality.IMAGE
    check_group_size(recipe)
    if recipe.evaluation.teacher:
        from rl_core.runs.teacher_score import check_teacher_score

        check_teacher_score(recipe)
    check_trackers(recipe.tracking.also)
    check_packages(recipe)
    if any(getattr(recipe, part) is not None for part in PARTS):
        # Here, since the contracts take a second to import.
        from rl_core.parts.of_recipe import check_parts

        check_parts(recipe)
    resolve_scorers(recipe.rewards, produced)
    for env_id, options in recipe.environments.items():
        if is_agent(env_id, options):
            check_serves_agents(algorithm_cls(algorithm_config), env_id)
        config_cls = config_class(spec(env_id, options).load())
        if config_cls is not None:
            _check_block(config_cls, own_options(options), f"environments.{env_id}")
    source_class(recipe.data_source)
    places = {"data.train": recipe.data.train, "data.eval": recipe.data.eval}
    places |= {
        f"evaluation.sets.{name}.data": one.data for name, one in recipe.evaluation.sets.items()
    }
    for place, entries in places.items():
        for index, entry in enumerate(entries):
            if isinstance(entry, dict):
                _check_block(_source_model(recipe, entry), entry, f"{place}.{index}")
    for index, entry in enumerate(recipe.validation.benchmarks):
        if isinstance(entry, dict):
            _check_block(_rows_model(entry), entry, f"validation.benchmarks.{index}")


def _source_model(recipe: Recipe, entry: dict[str, object]) -> type[BaseModel]:
    """Return the spec class of a block of `data.train` or `data.eval`."""
    from rl_core.builtin.data.prompt_files import made_spec
    from rl_core.data.read.sources import SourceSpec

    if recipe.has_pairs:
        return PairSource
    if recipe.draws:
        return made_spec(entry) or SourceSpec
    return _prompts_model(entry)


def _rows_model(entry: dict[str, Any]) -> type[BaseModel]:
    """Return the spec class of a block of rows of any kind."""
    from rl_core.builtin.data.prompt_files import made_spec

    return made_spec(entry) or _prompts_model(entry)


def _prompts_model(entry: dict[str, Any]) -> type[BaseModel]:
    """Return the spec class of a block of prompt rows."""
    from rl_core.builtin.data.builtin_rows import BuiltinSpec
    from rl_core.builtin.data.environments.files import environment_rows
    from rl_core.builtin.data.log_lines import LogLinesSpec
    from rl_core.builtin.data.open_prompts import SentencesSpec
    from rl_core.builtin.data.pair_questions import PairQuestionsSpec
    from rl_core.builtin.data.picture_rows import PicturesSpec
    from rl_core.builtin.data.reasoning_problems import GenerateSpec
    from rl_core.data.read.sources import SourceSpec

    if "pictures" in entry:
        return PicturesSpec
    if "fixture" in entry:
        return PairQuestionsSpec
    if "builtin" in entry:
        return BuiltinSpec
    if "sentences" in entry:
        return SentencesSpec
    if "log_lines" in entry:
        return LogLinesSpec
    if kind := environment_rows(entry):
        return kind
    if "task" in entry:
        return GenerateSpec
    return SourceSpec


def _check_block(config_cls: type[BaseModel], values: dict[str, object], where: str) -> None:
    try:
        config_cls(**values)
    except ValidationError as error:
        raise RecipeError(describe_validation_error(error, where, config_cls)) from error


def _foreign_keys_of_parts(values: Mapping[str, Any]) -> list[str]:
    """Return a line for each key of another system in the blocks of parts.

    The typed recipe does not look into these, and a pasted recipe is answered as a whole.
    """
    blocks = {part: values[part] for part in PARTS if isinstance(values.get(part), Mapping)}
    lines: list[str] = []
    for part, block in blocks.items():
        if "target" not in block:
            for key, value in block.items():
                if key not in USUAL_OPTIONS:
                    lines.extend(foreign_key_lines(f"{part}.{key}", value))
    return lines


def _located(message: str, where: str) -> str:
    return "\n".join(f"{where}: {line}" for line in message.splitlines())


def _read_profile(name: str, where: str) -> dict[str, object]:
    if name not in profile_names():
        raise RecipeError(f"{where}: unknown profile {name!r}{nearest(name, profile_names())}")
    path = DEPLOYMENTS / "profiles" / f"{name}.yaml"
    return resolved(merge_overrides(read_yaml(path), (), path), path)
