"""A chain: recipes that are trained one after the other, each from the winner of an earlier one."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import Field, field_validator, model_validator

from schemas.sections.section import Section

REFERENCE = "stage:"
"""Prefix of a value in a stage's recipe that stands for the version an earlier stage registered."""
_NAME = r"^[a-z][a-z0-9_-]{0,39}$"


class StageSpec(Section):
    """One stage of a chain: a recipe, and the settings that differ from it."""

    name: str = Field(pattern=_NAME)
    """Name of the stage, by which later stages refer to its model: `stage:NAME`."""
    recipe: str = Field(min_length=1)
    """A shipped recipe, or the path of a YAML file, relative to the chain's file or to the current
    folder."""
    overrides: list[str] = Field(default_factory=list)
    """Settings on top of the recipe: dotted assignments, or a mapping in the form of a recipe."""

    @field_validator("overrides", mode="before")
    @classmethod
    def _mapping_in_the_form_of_a_recipe(cls, value: object) -> Any:
        if isinstance(value, Mapping):
            return list(assignments(value))
        return value


class Chain(Section):
    """The file of a chain."""

    name: str = Field(pattern=_NAME)
    """Name of the chain; the recipe of each stage is called `<chain>-<stage>`."""
    stages: list[StageSpec] = Field(min_length=1)
    """The stages, in the order in which they are trained."""

    @model_validator(mode="after")
    def _each_stage_has_its_own_name(self) -> "Chain":
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two stages are called {name!r}; give each a name of its own")
        return self


def assignments(values: Mapping[Any, Any], prefix: str = "") -> Iterator[str]:
    """Yield nested settings as dotted assignments. The block of a plug-in stays whole, since it
    replaces the recipe's."""
    for key, value in values.items():
        is_section = isinstance(value, Mapping) and value and not {"name", "target"} & set(value)
        if is_section:
            yield from assignments(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={json.dumps(value, ensure_ascii=False, default=str)}"
