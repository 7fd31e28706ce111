"""Typed Python functions as tools: pydantic reads the schema from the signature and holds arguments
to it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from threading import Lock
from typing import Any, cast

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import ArgsKwargs

from rl_core.envs.tool_env.result import Content, content_of
from rl_core.envs.tool_env.tool import Schema, ToolFault, schema_of
from rl_core.errors import EnvError, RecipeError
from rl_core.runtime.registry import import_target

MOST_HANGING = 16
"""Calls of a function that may hang at once; a thread cannot be ended, so more of them are
refused."""


class FunctionTool:
    """A function with type annotations and a docstring.

    Raises: EnvError when its arguments cannot be described.
    """

    def __init__(self, function: Callable[..., object], where: str = "") -> None:
        self.function = function
        self.name: str = getattr(function, "__name__", "")
        place = where or self.name
        said = inspect.getdoc(function)
        if not said:
            raise EnvError(f"{place} has no docstring, from which the model learns what it does")
        untyped = [
            one.name
            for one in inspect.signature(function).parameters.values()
            if one.annotation is inspect.Parameter.empty
        ]
        if untyped:
            raise EnvError(
                f"{place}: the argument {untyped[0]} has no type; write one, such as "
                f"{untyped[0]}: int"
            )
        try:
            self._arguments = TypeAdapter[Any](cast(Any, function))
            parameters = self._arguments.json_schema()
        except (PydanticSchemaGenerationError, PydanticUserError, NameError) as error:
            why = str(error).splitlines()[0]
            raise EnvError(f"{place}: its arguments cannot be described as JSON: {why}") from error
        if parameters.get("type") != "object":
            raise EnvError(f"{place} takes arguments by position alone; models name them")
        # Held to by pydantic; a model need not read it in every prompt.
        parameters.pop("additionalProperties", None)
        self.schema: Schema = schema_of(self.name, said, parameters)
        self._running = 0
        self._lock = Lock()

    def call(self, arguments: Mapping[str, object], timeout_s: float) -> Content:
        """Call the function. Raises: ToolFault when arguments are of other types, when it raises,
        or when too many earlier calls hang."""
        with self._lock:
            if self._running >= MOST_HANGING:
                raise ToolFault(f"{self._running} earlier calls have not ended")
            self._running += 1
        try:
            result = self._arguments.validate_python(ArgsKwargs((), dict(arguments)))
            if inspect.isawaitable(result):
                result = asyncio.run(_waited(result, timeout_s))
            return content_of(result)
        except ValidationError as error:
            raise ToolFault(_told(error)) from error
        # A function raises what it likes.
        except Exception as error:
            raise ToolFault(f"{type(error).__name__}: {error}") from error
        finally:
            with self._lock:
                self._running -= 1


@cache
def function_of(target: str) -> FunctionTool:
    """Return the tool of `pkg.module:function`, one in a process. Raises: EnvError when it cannot
    be imported or described."""
    try:
        function = import_target(target)
    except RecipeError as error:
        raise EnvError(str(error).replace("pkg.module:Class", "pkg.module:function")) from error
    if not inspect.isroutine(function):
        raise EnvError(f"{target} is no function")
    return FunctionTool(function, target)


async def _waited(result: Any, timeout_s: float) -> Any:
    return await asyncio.wait_for(result, timeout_s)


def _told(error: ValidationError) -> str:
    """Return what is wrong with arguments, a clause for each."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors(include_url=False)
    )
