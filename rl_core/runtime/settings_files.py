"""Settings in YAML files: read, overridden by dotted assignments, interpolations resolved.

Separate from `rl_core.runs.recipes`, so that commands without a recipe start without its schemas.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl_core.errors import RecipeError
from rl_core.runtime.strict_yaml import read_strict_yaml, yaml_problem
from schemas.sections.checks.foreign_keys import foreign_key_lines

DEPLOYMENTS = Path(__file__).resolve().parents[2] / "deployments"
"""Folder of the settings that ship with the project."""
_NO_DEFAULT: object = object()
_INDEX = re.compile(r"\[(\d+)\]")


def read_yaml(path: Path) -> dict[str, object]:
    """Read the mapping in a YAML file, without resolving interpolations. Raises: RecipeError."""
    values = read_strict_yaml(path)
    if not isinstance(values, dict):
        got = "nothing" if values is None else type(values).__name__
        raise RecipeError(f"{path}: a recipe is a mapping of keys, got {got}")
    return values


def first_comment(path: Path) -> str:
    """Return the sentence that a file of settings begins with; empty if it has none."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


def merge_overrides(values: dict[str, object], overrides: Sequence[str], path: Path) -> Container:
    """Return the mapping with dotted assignments on top, as an OmegaConf object.

    A mapping is merged into the existing one, except for a plug-in's (`algorithm={name: rloo}`),
    which replaces it: the settings of one plug-in mean nothing to another. An entry of a list is
    named by its number, as in `data.train.0.size=50`. Raises: RecipeError.
    """
    try:
        base: Container = OmegaConf.create(values)
    except RecursionError as error:
        raise RecipeError(f"{path}: nested too deeply, or a part contains itself") from error
    except (OmegaConfBaseException, ValueError) as error:
        raise RecipeError(f"{path}: {_first_line(error)}") from error
    for text in overrides:
        key, sep, assigned = text.partition("=")
        key = _INDEX.sub(r".\1", key.strip())
        if not sep or "" in key.split(".") or "[" in key or "]" in key:
            raise RecipeError(f"override {text!r} is not of the form key.subkey=value")
        try:
            base = _with_override(base, key, f"{key}={assigned}")
        except yaml.MarkedYAMLError as error:
            raise RecipeError(f"override {text!r}: {yaml_problem(error)}") from error
        except RecursionError as error:
            raise RecipeError(f"override {text[:80]!r}: nested too deeply") from error
        except (OmegaConfBaseException, yaml.YAMLError, TypeError, ValueError) as error:
            # OmegaConf lets a mapping that meets a list end in a TypeError.
            foreign = foreign_key_lines(key, None)
            reason = foreign[0] if foreign else _first_line(error)
            raise RecipeError(f"override {text!r}: {reason}") from error
    return base


def resolved(config: object, path: Path) -> dict[str, object]:
    """Return plain values with every interpolation resolved. Raises: RecipeError naming the key and
    the missing value."""
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        reason = _first_line(error).rpartition("interpolation: ")[2].strip('"')
        raise RecipeError(
            f"{path}: {error.full_key}: {reason}; set it, or write ${{oc.env:NAME,default}}"
        ) from error
    except RecursionError as error:
        raise RecipeError(f"{path}: its interpolations lead in a circle") from error
    if not isinstance(values, dict):
        raise RecipeError(f"{path}: a recipe is a mapping of keys, got {type(values).__name__}")
    return {str(key): value for key, value in values.items()}


def _with_override(base: Container, key: str, assignment: str) -> Container:
    given = OmegaConf.from_dotlist([assignment])
    value = OmegaConf.select(given, key, throw_on_missing=False)
    is_plugin = isinstance(value, DictConfig) and {"name", "target"} & set(value)
    if _reaches_into_a_list(base, key.split(".")):
        OmegaConf.update(base, key, value, merge=not is_plugin, force_add=True)
    elif is_plugin:
        OmegaConf.update(base, key, value, merge=False, force_add=True)
    else:
        base = OmegaConf.merge(base, given)
    return base


def _reaches_into_a_list(base: Container, parts: Sequence[str]) -> bool:
    """Return True if a key names an entry of a list, or what is in one. Raises: ValueError when the
    list has no such entry."""
    node: object = base
    for number, part in enumerate(parts):
        if isinstance(node, ListConfig):
            if not part.isdecimal() or int(part) >= len(node):
                where, last = ".".join(parts[:number]), len(node) - 1
                entries = f"{where}.0 to {where}.{last}" if last >= 0 else "none"
                raise ValueError(
                    f"{where} is a list, whose entries are {entries}; give one of these, or the "
                    "whole list"
                )
            return True
        if not isinstance(node, DictConfig) or part not in node:
            return False
        node = node[part]
    return False


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _environment_variable(name: str, default: object = _NO_DEFAULT) -> object:
    """Return what `${oc.env:NAME,default}` stands for. A variable that is set to nothing counts as
    unset, as with `${NAME:-default}` in a shell: a path would become the current folder."""
    value = os.environ.get(name)
    if value:
        return value
    if default is not _NO_DEFAULT:
        return None if default is None else str(default)
    state = "not found" if value is None else "is set, but empty"
    raise KeyError(f"Environment variable '{name}' {state}")


OmegaConf.register_resolver("oc.env", _environment_variable, replace=True)
