"""The recipe's `preference` block, and where pairs of answers come from."""

from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from schemas.section import Section


class ThinkMode(StrEnum):
    """What becomes of an answer's reasoning, `<think>...</think>`."""

    KEEP = "keep"
    """Answers are learnt as they are written."""
    STRIP = "strip"
    """The reasoning is taken out; two answers that are then equal teach nothing and are counted."""
    EMPTY = "empty"
    """An answer without reasoning gets an empty `<think></think>` before it: what a reasoning model says when it
    answers at once."""


class ReferenceMode(StrEnum):
    """Where the log-probabilities of the model before training come from."""

    FORWARD = "forward"
    """A forward pass each step: adapters disabled, or a frozen copy of the whole model."""
    PRECOMPUTED = "precomputed"
    """One pass over all pairs before training, kept in the cache: no copy in memory, no second pass in a step."""


class PreferenceConfig(Section):
    """How pairs are turned into tokens and compared with the model before training."""

    max_length: int | None = Field(default=None, ge=2)
    """Tokens of prompt and answer. A pair with a longer one keeps its place, is learnt nothing from, and is counted.
    Unset: 2048, or as many as the model has positions for if those are fewer. More than that is refused."""
    think: ThinkMode = ThinkMode.KEEP
    """What becomes of an answer's reasoning."""
    reference: ReferenceMode = ReferenceMode.FORWARD
    """Where the reference's log-probabilities come from."""


class PairFixture(StrEnum):
    """Pairs that are made on this machine, seeded, to train with no download."""

    TEXT = "text"
    """Described scenes with a question, the right answer, and one that is true of another thing in the scene."""
    MPO = "mpo"
    """Drawn pictures in MMPR's shape, prepared by the stage `mpo`."""


class PairSource(Section):
    """An entry of `data.train` or `data.eval` in a recipe of the domain `preference`; a plain string is its `path`."""

    path: str | None = None
    """A cache that the stage `mpo` published, or its `meta_public.json`, or `art://omni3/rl/mpo/data@latest`; or a
    `.jsonl`, `.json` or `.parquet` file of rows with `question`, `chosen`, `rejected` and perhaps `image`."""
    fixture: PairFixture | None = None
    """Instead of a path: pairs that are made."""
    num_rows: int = Field(default=400, ge=4)
    """With `fixture`: how many to make."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """With `fixture`: the same seed makes the same pairs."""
    split: Literal["train", "eval"] | None = None
    """Keep one side of a split by question and images, so that pairs about the same never lie on both; unset keeps
    all pairs."""
    eval_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Share of all questions that belongs to `eval`."""
    size: int | None = Field(default=None, ge=1)
    """At most so many pairs, the first ones."""

    @model_validator(mode="after")
    def _one_origin(self) -> "PairSource":
        if (self.path is None) == (self.fixture is None):
            raise ValueError("give either path or fixture")
        return self
