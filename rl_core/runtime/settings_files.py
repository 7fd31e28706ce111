"""Settings in YAML files: read, overridden by dotted assignments, interpolations resolved.

Separate from `rl_core.runs.recipes`, so that commands without a recipe start without its schemas.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl_core.errors import RecipeError
from schemas.foreign_keys import foreign_key_lines

_VARIABLE = re.compile(r"\$\{oc\.env:\s*(\w+)")

DEPLOYMENTS = Path(__file__).resolve().parents[2] / "deployments"
"""Folder of the settings that ship with the project."""


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the mapping in a YAML file, without resolving interpolations. Raises: RecipeError."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path}: not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys, got {type(values).__name__}")
    return values


def merge_overrides(values: dict[str, Any], overrides: Sequence[str], path: Path) -> Any:
    """Return the mapping with dotted assignments on top, as an OmegaConf object.

    A mapping is merged into the existing one, except for a plug-in's (`algorithm={name: rloo}`),
    which replaces it: the settings of one plug-in mean nothing to another. Raises: RecipeError.
    """
    try:
        base: Any = OmegaConf.create(values)
    except OmegaConfBaseException as error:
        raise RecipeError(f"{path}: {str(error).splitlines()[0]}") from error
    for text in overrides:
        key, sep, _ = text.partition("=")
        if not sep or not key.strip():
            raise RecipeError(f"override {text!r} is not of the form key.subkey=value")
        try:
            assigned = OmegaConf.from_dotlist([text])
            value = OmegaConf.select(assigned, key.strip(), throw_on_missing=False)
            if isinstance(value, DictConfig) and {"name", "target"} & set(value):
                OmegaConf.update(base, key.strip(), value, merge=False, force_add=True)
            else:
                base = OmegaConf.merge(base, assigned)
        except (OmegaConfBaseException, yaml.YAMLError, TypeError) as error:
            # OmegaConf lets a mapping that meets a list end in a TypeError.
            foreign = foreign_key_lines(key.strip(), None)
            reason = foreign[0] if foreign else str(error).splitlines()[0]
            raise RecipeError(f"override {text!r}: {reason}") from error
    return base


def resolved(config: Any, path: Path) -> dict[str, Any]:
    """Return plain values with every interpolation resolved. Raises: RecipeError naming the key and
    the missing value."""
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        reason = str(error).splitlines()[0].rpartition("interpolation: ")[2].strip('"')
        raise RecipeError(
            f"{path}: {error.full_key}: {reason}; set it, or write ${{oc.env:NAME,default}}"
        ) from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys, got {type(values).__name__}")
    if empty := _set_but_empty(OmegaConf.to_container(config, resolve=False), ""):
        place, name = empty
        raise RecipeError(f"{path}: {place}: empty; is {name} set? (it is there, and empty)")
    return {str(key): value for key, value in values.items()}


def _set_but_empty(written: Any, place: str) -> tuple[str, str] | None:
    """Return the first key whose value is from a variable that is set and empty, and its name."""
    if isinstance(written, dict):
        inner = [(f"{place}.{key}" if place else str(key), one) for key, one in written.items()]
    elif isinstance(written, list):
        inner = [(f"{place}[{index}]", one) for index, one in enumerate(written)]
    elif isinstance(written, str):
        for name in _VARIABLE.findall(written):
            if not (value := os.environ.get(name)) and value is not None:
                return place, name
            if value is not None:
                break  # what follows is what would hold without it
        return None
    else:
        return None
    return next((found for key, one in inner if (found := _set_but_empty(one, key))), None)
