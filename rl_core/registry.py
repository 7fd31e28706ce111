"""Plug-ins: one decorator and folder discovery, used by every plug-in folder.

A plug-in is a class in its own file with a nested pydantic `Config`. In a recipe it is a block
`{name: <registered name>, ...}` or, for a class outside the project, `{target: my_pkg.my_module:MyClass, ...}`;
the remaining keys are validated by that class's `Config`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from rl_core.errors import RecipeError

T = TypeVar("T")


class PluginConfig(BaseModel):
    """Base of every plug-in's `Config`: unknown keys are refused, values do not change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def nearest(name: str, known: list[str]) -> str:
    """A hint for a misspelt name: ` (did you mean 'x'?)`, or the list of known names."""
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (did you mean {close[0]!r}?)" if close else f" (known: {', '.join(sorted(known))})"


def describe_validation_error(error: ValidationError, where: str, known: list[str]) -> str:
    """One line per problem of a pydantic error: place, value, and what would be right."""
    lines = []
    for problem in error.errors():
        place = ".".join([where, *(str(part) for part in problem["loc"])]).strip(".")
        if problem["type"] == "extra_forbidden":
            lines.append(f"{place}: unknown key{nearest(str(problem['loc'][-1]), known)}")
        else:
            lines.append(f"{place}: {problem['msg']}, got {problem.get('input')!r}")
    return "\n".join(lines)


def import_target(target: str) -> type:
    """The class named by `pkg.module:Class`. Raises: RecipeError when it cannot be imported."""
    module_name, _, attribute = target.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise RecipeError(f"target {target!r} cannot be imported ({error}); write it as pkg.module:Class") from error


class Registry(Generic[T]):
    """The plug-ins of one kind, found in one package."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._classes: dict[str, type[T]] = {}
        self._discovered = False

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Decorator that registers a class under `name`. Raises: RecipeError when the name is taken."""

        def add(cls: type[T]) -> type[T]:
            if name in self._classes:
                raise RecipeError(f"{self.kind} {name!r} is registered twice: {self._classes[name]} and {cls}")
            self._classes[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        """All registered names, sorted."""
        self._discover()
        return sorted(self._classes)

    def get(self, name: str) -> type[T]:
        """The class registered as `name`. Raises: RecipeError naming the nearest known one."""
        self._discover()
        if name not in self._classes:
            raise RecipeError(f"unknown {self.kind} {name!r}{nearest(name, list(self._classes))}")
        return self._classes[name]

    def resolve(self, block: Mapping[str, Any], where: str) -> tuple[type[T], Any]:
        """The class a recipe block names, and the block's other keys as that class's `Config`."""
        values = dict(block)
        name, target = values.pop("name", None), values.pop("target", None)
        if (name is None) == (target is None):
            raise RecipeError(
                f"{where}: give either name (one of {', '.join(self.names())}) or target (pkg.module:Class)"
            )
        cls = import_target(target) if target else self.get(str(name))
        config_cls = getattr(cls, "Config", PluginConfig)
        try:
            return cls, config_cls(**values)
        except ValidationError as error:
            raise RecipeError(describe_validation_error(error, where, list(config_cls.model_fields))) from error

    def _discover(self) -> None:
        if not self._discovered:
            self._discovered = True
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
