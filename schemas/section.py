"""What every section of a recipe is made of."""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of every recipe section: unknown keys refused, immutable, documented by the string under each field."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    former_keys: ClassVar[Mapping[str, str]] = {}
    """Keys that were renamed, and what to write instead."""


class DType(StrEnum):
    """A number format of weights, computation or communication."""

    BFLOAT16 = "bfloat16"
    """Half the memory and traffic, 8 bits of precision."""
    FLOAT32 = "float32"
    """Exact comparisons between runs and rank counts."""
