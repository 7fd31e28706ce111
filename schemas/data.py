"""The recipe's `data` block: where rows come from, and in which order they are trained on."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from schemas.column_map import ColumnMap
from schemas.section import Section


class CurriculumConfig(Section):
    """Prompts drawn by their pass rate p, with a weight of 4 p (1 - p): the half solved most often."""

    floor: float = Field(default=0.05, gt=0, le=1)
    """The least weight: what is solved or hopeless today is still looked at."""
    pass_mark: float = 1.0
    """A reward of at least this is right."""


class DataConfig(Section):
    """Where rows come from."""

    train: list[str | dict[str, Any]] = Field(min_length=1)
    """Files, globs, folders, Hugging Face datasets (`name[/config][@revision][:split]`, `{path: ..., split: ...}`), or
    generator blocks: `{task: ..., size: ...}` for procedural problems, `{pictures: ..., seed: ...}` for drawn ones,
    `{digits: ...}`, `{lettering: ...}` and `{oddities: ...}` for prompts of diffusion models."""
    eval: list[str | dict[str, Any]] = Field(min_length=1)
    """Held-out rows, written like `train`; a training row that asks what one of them asks is refused."""
    map: dict[str, str] | None = None
    """What a row's columns are made of: `{prompt: question, ground_truth: "answer|after:####"}`, with
    the steps `after:`, `before:`, `match:`, `prefix:`, `suffix:`, `number`, `text`, `json` behind
    `|`; `=` and a text is that text. Unset takes rows as they are."""
    blend: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Share of each `data_source` in what is trained on, as weights; unset takes all rows alike."""
    curriculum: CurriculumConfig | None = None
    """Draw prompts by how often their replies were right; unset takes each once per epoch. Excludes `blend`."""
    max_prompt_length: int = Field(default=512, ge=1)
    """Prompts with more tokens than this are dropped and counted."""
    default_env_class: str | None = None
    """Environment of rows that name none."""
    on_invalid: Literal["fail", "drop"] = "fail"
    """What to do with rows that break the schema."""
    max_bad_fraction: float = Field(default=0.01, ge=0, le=1)
    """With `drop`: more bad rows than this share fail the run."""

    @field_validator("map")
    @classmethod
    def _map_can_be_read(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        ColumnMap(value or {})
        return value

    @property
    def column_map(self) -> ColumnMap:
        """`map`, read; empty where there is none."""
        return ColumnMap(self.map or {})
