"""Requests without a right answer: a sentence about a thing at a place, for training with a judge.

`{sentences: 64, split: train}` in a recipe's data stands for such rows of the environment
`open_ended`, which are written once and then reused. The place alone decides which rows are held
out, so the splits share none.
"""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Literal

from pydantic import Field

from rl_core.data.store.atomic import atomic_writer
from rl_core.errors import DataError
from schemas.sections.section import Section

Split = Literal["train", "eval"]

_VERSION = "1"
_THINGS = (
    *("table", "window", "door", "lamp", "clock", "chair", "letter", "basket", "mirror", "bell"),
    *("ladder", "candle", "bottle", "blanket", "suitcase", "painting"),
)
_PLACES: dict[Split, str] = {
    "train": "kitchen library station garden harbor school bakery museum hotel village office",
    "eval": "theater hospital market castle workshop airport",
}


class SentencesSpec(Section):
    """Requests for one sentence about a thing at a place."""

    sentences: int = Field(ge=1)
    """Number of requests, each another one."""
    split: Split = "train"
    """Split of the places: for training, or held out."""
    seed: int = 0
    """Seed that selects the requests."""


def sentence_rows(spec: SentencesSpec) -> list[dict[str, object]]:
    """Return the rows. Raises: DataError when there are fewer."""
    places = _PLACES[spec.split].split()
    pairs = [(thing, place) for thing in _THINGS for place in places]
    if spec.sentences > len(pairs):
        raise DataError(
            f"sentences: {spec.sentences} asked for; there are {len(pairs)} of the split "
            f"{spec.split}"
        )
    chosen = random.Random(f"sentences {spec.seed}").sample(pairs, spec.sentences)
    return [_row(thing, place) for thing, place in chosen]


def planned_sentences(spec: SentencesSpec, folder: Path | str) -> Path:
    """Return the file that `materialise_sentences` writes, without writing it."""
    values = json.dumps({"version": _VERSION, **spec.model_dump(mode="json")}, sort_keys=True)
    digest = hashlib.sha256(values.encode()).hexdigest()[:12]
    return Path(folder).expanduser() / f"sentences-{spec.split}-{digest}.jsonl"


def materialise_sentences(spec: SentencesSpec, folder: Path | str) -> Path:
    """Write the rows of `spec` once; an existing file is reused. Raises: DataError."""
    path = planned_sentences(spec, folder)
    if not path.is_file():
        rows = sentence_rows(spec)
        with atomic_writer(path) as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
    return path


def _row(thing: str, place: str) -> dict[str, object]:
    request = f"Write one short question or statement about the {thing} in the {place}."
    return {
        "data_source": "sentences",
        "prompt": [{"role": "user", "content": request}],
        "env_class": "open_ended",
        "reward_spec": {"method": "judge", "ground_truth": f"{thing}, {place}"},
        "extra_info": {"thing": thing, "place": place},
    }
