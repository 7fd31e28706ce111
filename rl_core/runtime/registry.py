"""Plug-in registries: one decorator and folder discovery, used by every plug-in folder.

A plug-in is a class in its own file with a nested pydantic `Config`. In a recipe it is a block
`{name: <registered name>, ...}` or, for a class outside the project, `{target:
my_pkg.my_module:MyClass, ...}`; the remaining keys are validated by that class's `Config`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from threading import RLock
from typing import Any, Generic, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from rl_core.errors import RecipeError
from rl_core.runtime.own_packages import hidden_module
from schemas.sections.checks.foreign_keys import foreign_key_lines
from schemas.sections.section import Section

T = TypeVar("T")


class PluginConfig(Section):
    """Base of every plug-in's `Config`: unknown keys are refused, and values are immutable."""


_OTHER_SHAPES = ("extra_forbidden", "list_type", "string_type")
"""Errors of pydantic at a key of another system: it is unknown, or holds a mapping and ours does
not."""


def nearest(name: str, known: list[str]) -> str:
    """Return a hint for a misspelt name: ` (did you mean 'x'?)`, or the list of known names."""
    close = get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (known: {', '.join(sorted(known))})"


def describe_validation_error(
    error: ValidationError, where: str, model: type[BaseModel], *also: str
) -> str:
    """Return one line per problem of a pydantic error about `model`: place, value, and what would
    be right.

    Args: also: top-level keys that are known in addition to the model's fields.
    """
    lines = []
    for problem in error.errors():
        loc = [str(part) for part in problem["loc"]]
        place = ".".join([*([where] if where else []), *loc])
        stated = f"{place}: " if place else ""
        foreign = []
        if problem["type"] in _OTHER_SHAPES:
            foreign = foreign_key_lines(place, problem["input"])
        if foreign:
            lines += foreign
        elif problem["type"] == "extra_forbidden":
            section = _section_at(model, loc[:-1])
            keys = [field.alias or name for name, field in section.model_fields.items()]
            known = [*keys, *(also if len(loc) == 1 else ())]
            renamed = getattr(section, "former_keys", {}).get(loc[-1])
            if renamed:
                lines.append(f"{stated}renamed: {renamed}")
            else:
                lines.append(f"{stated}unknown key{nearest(loc[-1], known)}")
        elif problem["type"] == "missing":
            lines.append(f"{stated}missing; this key must be given")
        elif problem["type"] == "value_error":
            shown = f", got {problem['input']!r}" if loc else ""
            lines.append(f"{stated}{problem['msg'].removeprefix('Value error, ')}{shown}")
        else:
            lines.append(f"{stated}{problem['msg']}, got {problem.get('input')!r}")
    return "\n".join(lines)


def _section_at(model: type[BaseModel], loc: list[str]) -> type[BaseModel]:
    """Return the section at `loc`, or `model` itself if the path leads through no section."""
    section = model
    for key in loc:
        field = section.model_fields.get(key)
        options = [field.annotation, *get_args(field.annotation)] if field else []
        section = next(
            (one for one in options if isinstance(one, type) and issubclass(one, BaseModel)),
            section,
        )
    return section


def import_target(target: str, where: str = "") -> type[Any]:
    """Import the class named by `pkg.module:Class`.

    Args: where: key of the block that names it, for the message. Raises: RecipeError when it cannot
    be imported.
    """
    module_name, _, attribute = target.partition(":")
    place = f"{where}: " if where else ""
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except Exception as error:  # a module of the user's may raise anything while it is imported
        if (hidden := hidden_module(module_name)) is not None:
            file, owner = hidden
            why = (
                f"a module of this name is at {owner}, and comes before {file}; give your file "
                "another name"
            )
            raise RecipeError(f"{place}target {target!r} cannot be imported: {why}") from error
        named = isinstance(error, (ImportError, AttributeError, ValueError))
        said = str(error) if named else f"{type(error).__name__}: {error}"
        raise RecipeError(
            f"{place}target {target!r} cannot be imported ({said}); write it as pkg.module:Class"
        ) from error


class Registry(Generic[T]):
    """The plug-ins of one kind, found in one package."""

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._classes: dict[str, type[T]] = {}
        self._discovered = False
        # Reentrant, since a plug-in may ask its own registry while it is imported.
        self._lock = RLock()

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Return a decorator that registers a class under `name`. Raises: RecipeError when the name
        is taken."""

        def add(cls: type[T]) -> type[T]:
            if name in self._classes:
                raise RecipeError(
                    f"{self.kind} {name!r} is registered twice: {self._classes[name]} and {cls}"
                )
            self._classes[name] = cls
            return cls

        return add

    def names(self) -> list[str]:
        """Return all registered names, sorted."""
        self._discover()
        return sorted(self._classes)

    def get(self, name: str) -> type[T]:
        """Return the class registered as `name`. Raises: RecipeError naming the nearest known
        one."""
        self._discover()
        if name not in self._classes:
            raise RecipeError(f"unknown {self.kind} {name!r}{nearest(name, list(self._classes))}")
        return self._classes[name]

    def resolve(self, block: Mapping[str, object], where: str) -> tuple[type[T], Any]:
        """Return the class that a recipe block names, and the block's other keys as that class's
        `Config`."""
        values = dict(block)
        name, target = values.pop("name", None), values.pop("target", None)
        if (name is None) == (target is None):
            if foreign := foreign_key_lines(where, values):
                raise RecipeError("\n".join(foreign))
            if name is not None:
                both = f", not both {name!r} and {target!r}; set the other to null"
            else:
                both = ""
            known = self.names()
            named = f"either name (one of {', '.join(known)}) or " if known else ""
            raise RecipeError(f"{where}: give {named}target (pkg.module:Class){both}")
        cls = self.get(str(name)) if target is None else self.imported(str(target), where)
        config_cls = getattr(cls, "Config", PluginConfig)
        if not (isinstance(config_cls, type) and issubclass(config_cls, Section)):
            raise RecipeError(
                f"{where}: the Config of {cls.__module__}:{cls.__qualname__} does not derive from "
                "rl_core.runtime.registry:PluginConfig, which refuses unknown keys"
            )
        try:
            return cls, config_cls(**values)
        except ValidationError as error:
            raise RecipeError(describe_validation_error(error, where, config_cls)) from error

    def imported(self, target: str, where: str) -> type[T]:
        """Return the class `pkg.module:Class`.

        Args: where: key of the block that names it. Raises: RecipeError when it cannot be imported,
        is not a class or fails `check`.
        """
        cls = import_target(target, where)
        if not isinstance(cls, type):
            place = f"{where}.target" if where else "target"
            raise RecipeError(f"{place}: {target} is not a class; write it as pkg.module:Class")
        self.check(cls, where)
        return cls

    def check(self, cls: type[T], where: str) -> None:
        """Check a class that a block names. Raises: RecipeError naming what it lacks."""

    def _discover(self) -> None:
        """Import every module of the package once; other threads wait until all are registered."""
        if self._discovered:
            return
        with self._lock:
            if self._discovered:
                return
            package = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(package.__path__):
                importlib.import_module(f"{self.package}.{module.name}")
            self._discovered = True
