"""Base class of the recipe's sections."""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from schemas.sections.checks.numbers import (
    LARGEST,
    beyond_all_settings,
    has_boolean_for_number,
    holds_numbers,
)


class Section(BaseModel):
    """Base of every recipe section and every plug-in's `Config`: unknown keys are refused, values
    are immutable, and the string under each field documents it. A number must be finite: no
    boolean, no infinity, nothing beyond `LARGEST`."""

    # Without `use_attribute_docstrings`: it parses the source of every class at every start.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    former_keys: ClassVar[Mapping[str, str]] = {}
    """Renamed keys, and the sentence that says what to write instead."""

    @field_validator("*", mode="before")
    @classmethod
    def _booleans_are_no_numbers(cls, value: object, info: ValidationInfo) -> object:
        if has_boolean_for_number(_annotation(cls, info), value):
            raise ValueError(
                "must be a number, not true or false (YAML reads yes, no, on and off as these)"
            )
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _numbers_are_within_reason(cls, value: object, info: ValidationInfo) -> object:
        if holds_numbers(_annotation(cls, info)) and beyond_all_settings(value) is not None:
            raise ValueError(f"must be between -{LARGEST} and {LARGEST}")
        return value


def _annotation(model: type[BaseModel], info: ValidationInfo) -> object:
    if info.field_name:
        return model.model_fields[info.field_name].annotation
    return None


class DType(StrEnum):
    """A number format of weights, computation or communication."""

    BFLOAT16 = "bfloat16"
    """16-bit floats: half the memory and traffic, 8 bits of precision."""
    FLOAT32 = "float32"
    """32-bit floats, for exact comparisons between runs and rank counts."""
