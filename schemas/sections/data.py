"""The recipe's `data` block: the files that rows come from, and the order in which rows are trained
on."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from schemas.rows.column_map import ColumnMap
from schemas.sections.parts import Block
from schemas.sections.section import Section


class CurriculumConfig(Section):
    """Curriculum that draws prompts by their pass rate p, with weight 4 p (1 - p): prompts solved
    half of the time are drawn most often."""

    floor: float = Field(default=0.05, gt=0, le=1)
    """Least sampling weight, so that prompts that are always or never solved are still drawn
    sometimes."""
    pass_mark: float = 1.0
    """Reward from which a reply counts as correct."""


class DataConfig(Section):
    """Sources of the training and held-out rows, and how rows are filtered and ordered."""

    train: list[str | Block] = Field(min_length=1)
    """Files, globs, folders, Hugging Face datasets (`name[/config][@revision][:split]`, `{path:
    ..., split: ...}`), or generator blocks: `{task: ..., size: ...}` for procedural problems,
    `{pictures: ..., seed: ...}` for drawn ones, `{digits: ...}`, `{lettering: ...}` and `{oddities:
    ...}` for prompts of diffusion models, `{log_lines: ...}` and `{digit_pictures: ...}` for
    answers and pictures to learn, `{builtin: train}` for a few fixed rows."""
    eval: list[str | Block] = Field(min_length=1)
    """Held-out rows, written like `train`; a training row with the same question as a held-out row
    is refused."""
    source: Block | None = None
    """Class that draws the prompts of each step: `{name: prompts}`, `{name: multimodal}`, `{name:
    default}` for a few built-in rows whatever `train` says, or `{target: my_pkg.mod:Class}`. Unset
    is `multimodal` where rows are prompts to draw, otherwise `prompts`."""
    map: dict[str, str] | None = None
    """Columns of a row from those of a dataset: `{prompt: question, ground_truth:
    "answer|after:####"}`. Steps behind `|`: `after:`, `before:`, `match:`, `prefix:`, `suffix:`,
    `number`, `text`, `json`; `=` and a text is that text. Unset takes rows as they are."""
    blend: dict[str, Annotated[float, Field(gt=0)]] | None = None
    """Sampling weight of each `data_source`; unset takes all rows alike."""
    curriculum: CurriculumConfig | None = None
    """Draw prompts by how often their replies were correct; unset takes each once per epoch.
    Excludes `blend`."""
    max_prompt_length: int = Field(default=512, ge=1)
    """Longest prompt in tokens; longer prompts are dropped and counted."""
    default_env_class: str | None = None
    """Environment of rows that do not name one."""
    on_invalid: Literal["fail", "drop"] = "fail"
    """Action on rows that break the schema: fail the run, or drop the row."""
    max_bad_fraction: float = Field(default=0.01, ge=0, le=1)
    """With `on_invalid: drop`: the run fails if more than this share of the rows is bad."""

    @model_validator(mode="before")
    @classmethod
    def _rows_of_the_default_source(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        source = values.get("source")
        if not isinstance(source, dict) or source.get("name") != "default":
            return values
        held_out = values.get("eval") or [{"builtin": "eval"}]
        return {**values, "train": [{"builtin": "train"}], "eval": held_out}

    @model_validator(mode="after")
    def _order_is_said_once(self) -> Self:
        orders = []
        for name in ("blend", "curriculum"):
            if getattr(self, name) is not None:
                orders.append(name)
        named = (self.source or {}).get("name") in ("prompts", "multimodal")
        if orders and self.source is not None and not named:
            raise ValueError(
                f"data.{orders[0]} orders the prompts itself, and so does data.source: keep one"
            )
        return self

    @field_validator("train", "eval")
    @classmethod
    def _each_names_something(cls, value: list[str | Block]) -> list[str | Block]:
        for index, entry in enumerate(value):
            path = entry.get("path", entry) if isinstance(entry, dict) else entry
            if isinstance(path, str) and not path.strip():
                raise ValueError(f"entry [{index}] is empty; name a file, folder or dataset")
        return value

    @field_validator("map")
    @classmethod
    def _map_can_be_read(cls, value: dict[str, str] | None) -> dict[str, str] | None:
        ColumnMap(value or {})
        return value

    @property
    def column_map(self) -> ColumnMap:
        """`map`, read; empty where there is none."""
        return ColumnMap(self.map or {})
