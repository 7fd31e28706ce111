"""Loading of a chain: its file, the recipe of each stage, and the references between them.

`stage:NAME` in the recipe of a stage stands for the version that an earlier stage registered: its
folder where a path is asked for, `models:/NAME/VERSION` in `rewards` and `algorithm`. A stage whose
overrides set no `model.path` starts from the last stage before it that trained a policy of its
kind.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rl_core.algorithms.teacher import REGISTERED
from rl_core.errors import RecipeError, UserError
from rl_core.runs.recipe_paths import paths_from_recipe
from rl_core.runs.recipes import find_recipe, has_stages, load_recipe, recipe_names
from rl_core.runtime.registry import describe_validation_error, nearest
from rl_core.runtime.settings_files import read_yaml
from schemas.chain import REFERENCE, Chain, StageSpec
from schemas.domains import ModelKind
from schemas.receipts import ModelReceipt
from schemas.recipe import Recipe
from schemas.sections.policy import ExportKind

START = "model.path"
_OF_A_STAGE = re.compile(r"stages(?:\.|\[)(?P<stage>[^.\[\]=]+)\]?\.(?P<rest>.+)", re.DOTALL)
_BY_VERSION = ("rewards", "algorithm")
"""Sections whose models may be named as registered versions."""


@dataclass(frozen=True)
class Stage:
    """A stage that is ready to be trained, but for the models of earlier stages."""

    name: str
    source: str
    """Recipe as `load_recipe` takes it."""
    overrides: tuple[str, ...]
    recipe: Recipe
    """The recipe with its overrides, in which references still stand."""
    uses: Mapping[str, str]
    """Names of earlier stages by the key of the recipe that refers to them."""

    @property
    def title(self) -> str:
        """Name of the recipe in tables: a shipped one's, or its file's."""
        if Path(self.source).is_absolute():
            return Path(self.source).name
        return self.source

    @property
    def starts_from(self) -> str | None:
        """Name of the stage whose model is trained further; None for a model of its own."""
        return self.uses.get(START)

    def after(self, trained: Mapping[str, ModelReceipt]) -> list[str]:
        """Return the overrides with the versions of earlier stages in place of references.

        Args: trained: results of the earlier stages by name.
        """
        return [*self.overrides, *self._instead(lambda key, name: _version(key, trained[name]))]

    def _instead(self, value: Callable[[str, str], str]) -> list[str]:
        return [f"{key}={json.dumps(value(key, name))}" for key, name in self.uses.items()]


@dataclass(frozen=True)
class LoadedChain:
    """A chain whose every stage has a valid recipe."""

    name: str
    file: Path
    stages: tuple[Stage, ...]

    def stage(self, name: str) -> Stage:
        """Return the stage of a name."""
        return next(stage for stage in self.stages if stage.name == name)

    def planned(
        self, stage: Stage, profile: str | None, note: Callable[[str], None] | None = None
    ) -> Recipe:
        """Return the recipe of a stage for checks before anything is trained: a model of an earlier
        stage is replaced by the one that that stage's training starts from. Args: note: as in
        `load_recipe`."""
        instead = stage._instead(lambda key, name: self.first_model(self.stage(name)))
        return load_recipe(stage.source, [*stage.overrides, *instead], profile, note)

    def first_model(self, stage: Stage) -> str:
        """Return the model that the training of a stage and of those before it began with."""
        while (earlier := stage.starts_from) is not None:
            stage = self.stage(earlier)
        return stage.recipe.model.path

    @contextmanager
    def naming(self, stage: Stage) -> Iterator[None]:
        """Have the user's errors in the block name the chain, the stage and its recipe."""
        with _naming(self.file.name, stage.name, stage.source):
            yield


def is_chain(name_or_path: str) -> bool:
    """Return True if a name or path is that of a chain. Raises: RecipeError when there is no such
    recipe."""
    return has_stages(find_recipe(name_or_path))


def load_chain(
    name_or_path: str, overrides: Sequence[str] = (), profile: str | None = None
) -> LoadedChain:
    """Load a chain, and the recipe of each of its stages.

    Args: overrides: dotted assignments such as `stages.rl.training.num_iterations=2`. profile: as
    in `load_recipe`, for all stages.
    Raises: RecipeError naming file, stage, key, value and what would be right.
    """
    path = find_recipe(name_or_path)
    spec = _read(path)
    added = _by_stage(overrides, [stage.name for stage in spec.stages], path)
    stages: list[Stage] = []
    for one in spec.stages:
        with _naming(path.name, one.name, one.recipe):
            stages.append(_load_stage(spec, one, added[one.name], stages, path, profile))
    return LoadedChain(spec.name, path, tuple(stages))


def _read(path: Path) -> Chain:
    values = read_yaml(path)
    stages = values.get("stages")
    for one in stages if isinstance(stages, list) else ():
        if isinstance(one, dict) and isinstance(one.get("overrides"), dict):
            one["overrides"] = paths_from_recipe(one["overrides"], path)
    try:
        return Chain.model_validate(values)
    except ValidationError as error:
        lines = describe_validation_error(error, "", Chain).splitlines()
        raise RecipeError("\n".join(f"{path.name}: {line}" for line in lines)) from error


def _load_stage(
    spec: Chain,
    stage: StageSpec,
    added: Sequence[str],
    earlier: Sequence[Stage],
    path: Path,
    profile: str | None,
) -> Stage:
    source = _source(stage.recipe, path)
    named, own = f"name={spec.name}-{stage.name}", [*stage.overrides, *added]
    alone = load_recipe(source, [named, *own], profile)
    starts = [one.name for one in earlier if _goes_on(one.recipe, alone)][-1:]
    # Before the stage's own overrides, which may name another model.
    overrides = (named, *(f"{START}={REFERENCE}{name}" for name in starts), *own)
    recipe = load_recipe(source, overrides, profile)
    uses = dict(_references(recipe.model_dump(mode="json")))
    for key, name in uses.items():
        _check_use(key, name, recipe, {one.name: one.recipe for one in earlier})
    return Stage(stage.name, source, overrides, recipe, uses)


def _goes_on(earlier: Recipe, recipe: Recipe) -> bool:
    """Return True if a recipe can train further what an earlier stage trained: a policy of its
    kind."""
    one, other = earlier.domain.traits, recipe.domain.traits
    both_write = {one.model, other.model} <= {ModelKind.TEXT, ModelKind.SEEING}
    return not one.gives_scores and (one.model is other.model or both_write)


def _check_use(key: str, name: str, recipe: Recipe, earlier: Mapping[str, Recipe]) -> None:
    """Check that a stage's reference is to a model that it can use. Raises: RecipeError."""
    if (used := earlier.get(name)) is None:
        there = nearest(name, [*earlier]) if earlier else "; it is the first one"
        raise RecipeError(f"{key}: {REFERENCE}{name} is no stage before this one{there}")
    if key == START and used.domain.traits.gives_scores and not recipe.domain.traits.gives_scores:
        raise RecipeError(
            f"{key}: the stage {name} trains a reward model, which writes nothing; name a stage "
            "that trains a policy, or another model"
        )
    if used.lora is not None and used.lora.export is ExportKind.ADAPTER:
        raise RecipeError(
            f"{key}: the stage {name} exports adapters alone, and a whole model is needed; set "
            f"lora.export: merged in the stage {name}"
        )


def _source(recipe: str, chain: Path) -> str:
    """Return a stage's recipe as `load_recipe` takes it."""
    if recipe not in recipe_names() and (beside := chain.parent / recipe).is_file():
        recipe = str(beside.absolute())
    if has_stages(find_recipe(recipe)):
        raise RecipeError(f"recipe {recipe} is a chain itself; name the recipes of its stages")
    return recipe


def _references(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the stage of every reference in a recipe's values."""
    if isinstance(value, str) and value.startswith(REFERENCE):
        yield key, value.removeprefix(REFERENCE)
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for part, one in items:
        yield from _references(one, f"{key}.{part}" if key else str(part))


def _version(key: str, trained: ModelReceipt) -> str:
    if key.partition(".")[0] in _BY_VERSION:
        return f"{REGISTERED}{trained.name}/{trained.version}"
    return trained.model_path


def _by_stage(overrides: Sequence[str], names: list[str], path: Path) -> dict[str, list[str]]:
    """Return the assignments of each stage. Raises: RecipeError on one of no stage."""
    found: dict[str, list[str]] = {name: [] for name in names}
    for text in overrides:
        named = _OF_A_STAGE.fullmatch(text.strip())
        stage = None if named is None else named["stage"]
        if stage is not None and stage.isdecimal() and int(stage) < len(names):
            stage = names[int(stage)]
        if named is None or stage not in found:
            meant = "" if stage is None else nearest(stage, names)
            raise RecipeError(
                f"{path.name}: override {text!r} names no stage{meant}; write "
                f"stages.NAME.key=value with NAME one of {', '.join(names)}"
            )
        found[stage].append(named["rest"])
    return found


@contextmanager
def _naming(chain: str, stage: str, source: str) -> Iterator[None]:
    try:
        yield
    except UserError as error:
        where = f"{chain}: stage {stage} ({source}): "
        text = str(error)
        if not text.startswith(f"{chain}: "):
            # In place, so that the error keeps its class and whatever else it carries.
            error.args = ("\n".join(where + line for line in text.splitlines()),)
        raise
