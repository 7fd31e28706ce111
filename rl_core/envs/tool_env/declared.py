"""Tools that a row declares: a list of schemas in OpenAI's form, as in TRL's column `tools`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rl_core.envs.tool_env.tool import Schema
from rl_core.errors import EnvError
from rl_core.runtime.registry import nearest
from schemas.rows.problems import as_list

FORM = '{"type": "function", "function": {"name", "description", "parameters"}}'


def declared_tools(value: object, known: Sequence[str]) -> list[Schema]:
    """Return a row's own tools.

    Args: value: a list of schemas, or its JSON text. known: tools that the environment runs.
    Raises: EnvError, naming the place in the row, its value and what would be right.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise EnvError(f"tools: no JSON ({error}), got {value!r:.120}") from error
    found = as_list(value)
    if found is None:
        raise EnvError(f"tools: must be a list of {FORM}, got {value!r:.120}")
    tools = [_checked(one, f"tools[{number}]", known) for number, one in enumerate(found)]
    names = [tool["function"]["name"] for tool in tools]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise EnvError(f"tools: {twice[0]!r} is declared twice; declare each tool once")
    return tools


def _checked(value: object, place: str, known: Sequence[str]) -> Schema:
    if not isinstance(value, Mapping):
        raise EnvError(f"{place}: must be {FORM}, got {value!r:.120}")
    # Parquet fills the keys that only other rows have.
    tool: Any = _without_missing(value)
    function = tool.get("function", tool)
    if not isinstance(function, Mapping):
        raise EnvError(f"{place}.function: must be an object with a name, got {function!r:.120}")
    place = f"{place}.function" if "function" in tool else place
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise EnvError(f"{place}.name: must be the name of a tool, got {name!r:.120}")
    if name not in known:
        raise EnvError(
            f"{place}.name: the environment runs no tool {name!r}{nearest(name, list(known))}"
        )
    description = function.get("description", "")
    if not isinstance(description, str):
        raise EnvError(f"{place}.description: must be a text, got {description!r:.120}")
    parameters = function.get("parameters", {"type": "object", "properties": {}})
    _check_parameters(parameters, f"{place}.parameters")
    described = {"name": name, "description": description, "parameters": dict(parameters)}
    return {"type": "function", "function": described}


def _check_parameters(parameters: object, place: str) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    if not isinstance(parameters, Mapping) or parameters.get("type") != "object":
        raise EnvError(f"{place}: must be a JSON schema of type object, got {parameters!r:.120}")
    try:
        Draft202012Validator.check_schema(dict(parameters))
    except SchemaError as error:
        where = ".".join([place, *map(str, error.absolute_path)])
        raise EnvError(f"{where}: no JSON schema: {error.message:.200}") from error


def _without_missing(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _without_missing(one) for key, one in value.items() if one is not None}
    items = as_list(value)
    return value if items is None else [_without_missing(one) for one in items]
