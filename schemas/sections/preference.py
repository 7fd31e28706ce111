"""The recipe's `preference` block, and the sources of preference pairs."""

from enum import StrEnum
from typing import Literal

from pydantic import Field, model_validator

from schemas.sections.section import Section


class ThinkMode(StrEnum):
    """Treatment of an answer's reasoning, `<think>...</think>`."""

    KEEP = "keep"
    """Train on answers as they are written."""
    STRIP = "strip"
    """Remove the reasoning; pairs whose answers are then equal carry no signal and are counted."""
    EMPTY = "empty"
    """Put an empty `<think></think>` before an answer without reasoning, as a reasoning model
    writes when it answers at once."""


class ReferenceMode(StrEnum):
    """Source of the reference model's log-probabilities."""

    FORWARD = "forward"
    """A forward pass in each step, with adapters disabled or by a frozen copy of the whole
    model."""
    PRECOMPUTED = "precomputed"
    """One pass over all pairs before training, stored in the cache: no copy in memory, and no
    second forward pass per step."""


class PreferenceConfig(Section):
    """Tokenisation of pairs, and their comparison with the reference model."""

    max_length: int | None = Field(default=None, ge=2)
    """Longest prompt plus answer in tokens. A pair that is longer stays in its batch, does not
    train, and is counted. Unset: 2048, or the number of positions of the model if that is smaller.
    A larger value is refused."""
    think: ThinkMode = ThinkMode.KEEP
    """Treatment of an answer's reasoning."""
    reference: ReferenceMode = ReferenceMode.FORWARD
    """Source of the reference's log-probabilities."""


class PairFixture(StrEnum):
    """Seeded pairs that are generated on this machine, for training without a download."""

    TEXT = "text"
    """Described scenes with a question, the correct answer, and an answer that is true of another
    object in the scene."""
    COURTESY = "courtesy"
    """Two replies of a shop to a customer that say the same, of which the courteous one is
    chosen."""
    MPO = "mpo"
    """Drawn pictures in MMPR's format, prepared by the stage `mpo`."""


class PairSource(Section):
    """An entry of `data.train` or `data.eval` in a recipe of the domains `preference` and
    `reward_model`; a plain string is its `path`."""

    path: str | None = None
    """A cache published by the stage `mpo`, its `meta_public.json`, or
    `art://omni3/rl/mpo/data@latest`; or a file, glob, folder or Hugging Face dataset of rows with
    `question`, `chosen`, `rejected` and optionally `image`, or of another system's pairs."""
    fixture: PairFixture | None = None
    """Generated pairs, instead of a path."""
    num_rows: int = Field(default=400, ge=4)
    """With `fixture`: number of pairs to generate."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """With `fixture`: seed of the generated pairs."""
    split: Literal["train", "eval"] | None = None
    """Side of a split by question and images to keep, so that pairs about the same question and
    images never end up on both sides; unset keeps all pairs."""
    eval_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Share of all questions that belongs to `eval`."""
    size: int | None = Field(default=None, ge=1)
    """Maximum number of pairs to use, from the start; unset uses all."""

    @model_validator(mode="after")
    def _one_origin(self) -> "PairSource":
        if (self.path is None) == (self.fixture is None):
            raise ValueError("give either path or fixture")
        return self
