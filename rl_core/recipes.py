"""Loading a recipe: YAML, environment interpolation, profile, dotted overrides, plug-in checks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from rl_core.errors import RecipeError
from rl_core.registry import describe_validation_error, nearest
from schemas.recipe import Recipe

DEPLOYMENTS = Path(__file__).resolve().parent.parent / "deployments"


def recipe_names() -> list[str]:
    """Names of the recipes that ship with the project (`text`, `smoke/text`, ...)."""
    root = DEPLOYMENTS / "recipes"
    return sorted(str(path.relative_to(root).with_suffix("")) for path in root.rglob("*.yaml"))


def profile_names() -> list[str]:
    """Names of the placement profiles that ship with the project."""
    return sorted(path.stem for path in (DEPLOYMENTS / "profiles").glob("*.yaml"))


def find_recipe(name_or_path: str) -> Path:
    """The file of a shipped recipe or of a path. Raises: RecipeError naming the nearest known one."""
    shipped = DEPLOYMENTS / "recipes" / f"{name_or_path}.yaml"
    if shipped.is_file():
        return shipped
    path = Path(name_or_path).expanduser()
    if path.suffix.lower() in {".yaml", ".yml"}:
        if path.is_file():
            return path
        raise RecipeError(f"recipe file {path} does not exist")
    raise RecipeError(f"unknown recipe {name_or_path!r}{nearest(name_or_path, recipe_names())}, or give a .yaml path")


def load_recipe(name_or_path: str, overrides: Sequence[str] = (), profile: str | None = None) -> Recipe:
    """The recipe with its profile's placement, the overrides on top, and every plug-in block checked.

    Args: overrides: dotted assignments such as `algorithm.clip_high=0.28`. profile: a profile's name; unset
    takes the recipe's own `profile` key, else `cpu`.
    Raises: RecipeError naming file, key, value and what would be right.
    """
    path = find_recipe(name_or_path)
    layered = OmegaConf.create(_read_yaml(path))
    written = _to_dict(_merge(layered, overrides), path)
    chosen = profile or written.pop("profile", None) or "cpu"
    written.pop("profile", None)
    written["placement"] = {**_read_profile(chosen), **(written.get("placement") or {})}
    return parse_recipe(written, where=path.name)


def parse_recipe(values: dict[str, Any], where: str = "recipe") -> Recipe:
    """A recipe from plain values, with every plug-in block checked. Raises: RecipeError."""
    try:
        recipe = Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(_describe(error, where)) from error
    _check_plugins(recipe)
    return recipe


def dump_recipe(recipe: Recipe) -> str:
    """The fully resolved recipe as YAML."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _check_plugins(recipe: Recipe) -> None:
    from rl_core.algorithms import algorithms
    from rl_core.data.generate import GenerateSpec
    from rl_core.envs.registration import spec

    algorithms.resolve(recipe.algorithm, "algorithm")
    for env_id, options in recipe.environments.items():
        _check_block(spec(env_id).load().Config, options, f"environments.{env_id}")
    for part in ("train", "eval"):
        for index, entry in enumerate(getattr(recipe.data, part)):
            if isinstance(entry, dict):
                _check_block(GenerateSpec, entry, f"data.{part}.{index}")


def _check_block(config_cls: type[BaseModel], values: dict[str, Any], where: str) -> None:
    try:
        config_cls(**values)
    except ValidationError as error:
        raise RecipeError(describe_validation_error(error, where, list(config_cls.model_fields))) from error


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys, got {type(values).__name__}")
    return values


def _read_profile(name: str) -> dict[str, Any]:
    path = DEPLOYMENTS / "profiles" / f"{name}.yaml"
    if not path.is_file():
        raise RecipeError(f"unknown profile {name!r}{nearest(name, profile_names())}")
    return _read_yaml(path)


def _merge(base: Any, overrides: Sequence[str]) -> Any:
    for text in overrides:
        key, sep, _ = text.partition("=")
        if not sep or not key.strip():
            raise RecipeError(f"override {text!r} is not of the form key.subkey=value")
        try:
            base = OmegaConf.merge(base, OmegaConf.from_dotlist([text]))
        except OmegaConfBaseException as error:
            raise RecipeError(f"override {text!r}: {error}") from error
    return base


def _to_dict(config: Any, path: Path) -> dict[str, Any]:
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise RecipeError(f"{path}: {str(error).splitlines()[0]}; write ${{oc.env:NAME,default}}") from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def _describe(error: ValidationError, where: str) -> str:
    lines = []
    for problem in error.errors():
        loc = [str(part) for part in problem["loc"]]
        place = f"{where}: {'.'.join(loc)}" if loc else where
        if problem["type"] == "extra_forbidden":
            lines.append(f"{place}: unknown key{nearest(loc[-1], _known_keys(loc[:-1]))}")
        elif problem["type"] == "missing":
            lines.append(f"{place}: missing; this key must be given")
        else:
            shown = "" if problem["type"] == "value_error" else f", got {problem.get('input')!r}"
            lines.append(f"{place}: {problem['msg'].removeprefix('Value error, ')}{shown}")
    return "\n".join(lines)


def _known_keys(section: list[str]) -> list[str]:
    model: type[BaseModel] = Recipe
    for key in section:
        annotation = model.model_fields[key].annotation
        options = [annotation, *get_args(annotation)]
        model = next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))
    return [*model.model_fields, *(["profile"] if model is Recipe else [])]
