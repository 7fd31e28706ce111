"""Generated prompt files for diffusion models: digits to draw, words to letter, and odd ways to
ask.

`{digits: 200, seed: 1}`, `{lettering: 200, seed: 1}` and `{oddities: 200, seed: 1}` in a recipe's
data stand for such files, which are written once and then reused; `{builtin: train}` stands for a
few fixed prompts. The text alone decides which prompts are held out (digits: the wording, oddities:
the question), so the splits share nothing, regardless of seeds and sizes.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field

from rl_core.builtin.data.builtin_rows import BuiltinSpec, media_rows
from rl_core.builtin.data.digit_pictures import DigitPicturesSpec, digit_picture_rows
from rl_core.builtin.data.digit_prompts import draw_prompts
from rl_core.builtin.data.odd_prompts import Oddity, draw_odd_prompts
from rl_core.builtin.data.reasoning_problems import belongs_to_eval
from rl_core.data.store.atomic import atomic_writer
from rl_core.errors import DataError
from schemas.sections.section import Section

_VERSION = "1"
_MOST_DRAWS = 50
EVAL_FRACTION = 0.2
SURFACES = (
    "sign",
    "poster",
    "shop window",
    "book cover",
    "mug",
    "banner",
    "T-shirt",
    "wall",
    "postcard",
    "cake",
)
STYLES = ("", "hand-painted", "neon", "wooden", "minimalist", "vintage", "chalk-drawn", "glowing")
VERBS = ("that says", "reading", "with the words", "with the text")
WORDS = (
    *(
        "open",
        "closed",
        "welcome",
        "hello",
        "coffee",
        "bakery",
        "garden",
        "music",
        "library",
        "summer",
        "winter",
    ),
    *(
        "sale",
        "fresh",
        "bread",
        "today",
        "tomorrow",
        "school",
        "quiet",
        "please",
        "exit",
        "north",
        "south",
        "river",
    ),
    *(
        "mountain",
        "ocean",
        "sunrise",
        "dream",
        "large",
        "small",
        "happy",
        "birthday",
        "thanks",
        "good",
        "morning",
    ),
)


class DigitsSpec(Section):
    """Prompts that ask for a handwritten digit (`rl_core.builtin.data.digit_prompts`)."""

    digits: int = Field(ge=1)
    """Number of prompts, each with a different text."""
    seed: int = 0
    """Seed that selects the prompts."""
    split: Literal["train", "eval"] = "train"
    """Split of the wordings: for training, or held out."""
    quoted: bool = False
    """Put the digit's figure in quotation marks, which is what the reward `ocr` looks for."""


class LetteringSpec(Section):
    """Prompts that ask for quoted words on an object, for the reward `ocr`."""

    lettering: int = Field(ge=1)
    """Number of prompts, each with a different text."""
    seed: int = 0
    """Seed that selects the prompts."""
    split: Literal["train", "eval"] = "train"
    """Side of the split by text."""
    max_words: int = Field(default=2, ge=1)
    """Maximum number of words to letter."""


class OdditiesSpec(Section):
    """Prompts that mean a digit in an odd way (`rl_core.builtin.data.odd_prompts`), for training a
    prompt enhancer."""

    oddities: int = Field(ge=1)
    """Number of prompts, each with a different text."""
    seed: int = 0
    """Seed that selects the prompts."""
    split: Literal["train", "eval"] = "train"
    """Split of the questions: for training, or held out."""
    kinds: list[Oddity] = Field(default_factory=lambda: list(Oddity), min_length=1)
    """Kinds of oddities, all equally often."""


MadeSpec = DigitsSpec | DigitPicturesSpec | LetteringSpec | OdditiesSpec | BuiltinSpec
_SPECS: dict[str, type[MadeSpec]] = {
    "digits": DigitsSpec,
    "digit_pictures": DigitPicturesSpec,
    "lettering": LetteringSpec,
    "oddities": OdditiesSpec,
    "builtin": BuiltinSpec,
}


def made_spec(entry: object) -> type[MadeSpec] | None:
    """Return the spec class of a block of a recipe's data, or None if it is another kind of
    block."""
    if not isinstance(entry, dict):
        return None
    return next((spec for key, spec in _SPECS.items() if key in entry), None)


def planned_prompts(spec: MadeSpec, folder: Path | str) -> Path:
    """Return the file that `materialise_prompts` writes, without writing it."""
    fixed = {"rows": media_rows(spec.builtin)} if isinstance(spec, BuiltinSpec) else {}
    values = json.dumps(
        {"version": _VERSION, **spec.model_dump(mode="json"), **fixed}, sort_keys=True
    )
    digest = hashlib.sha256(values.encode()).hexdigest()[:12]
    kind = next(key for key, known in _SPECS.items() if isinstance(spec, known))
    return Path(folder).expanduser() / f"{kind}-{spec.split}-{digest}.jsonl"


def materialise_prompts(spec: MadeSpec, folder: Path | str) -> Path:
    """Write the prompts of `spec` once, as media prompt rows; an existing file is reused.

    Raises: DataError when there are fewer different prompts than requested.
    """
    path = planned_prompts(spec, folder)
    if not path.is_file():
        with atomic_writer(path) as file:
            for row in _rows(spec, path.with_suffix("")):
                file.write(json.dumps(row) + "\n")
    return path


def _rows(spec: MadeSpec, pictures: Path) -> Iterator[dict[str, object]]:
    """Yield the rows. Args: pictures: folder for their pictures, if they have some."""
    if isinstance(spec, DigitPicturesSpec):
        made = digit_picture_rows(spec, pictures)
        return (_row("digit", text, told) | {"media_refs": [ref]} for text, told, ref in made)
    if isinstance(spec, BuiltinSpec):
        return iter(media_rows(spec.builtin))
    if isinstance(spec, DigitsSpec):
        return _digit_rows(spec)
    if isinstance(spec, LetteringSpec):
        return _lettering_rows(spec)
    return _oddity_rows(spec)


def _digit_rows(spec: DigitsSpec) -> Iterator[dict[str, object]]:
    for prompt in draw_prompts(spec.split, spec.digits, spec.seed, quoted=spec.quoted):
        yield _row("digit", prompt.text, {"digit": prompt.digit})


def _lettering_rows(spec: LetteringSpec) -> Iterator[dict[str, object]]:
    rng, seen = random.Random(f"lettering {spec.seed}"), set[str]()
    for _ in range(_MOST_DRAWS * spec.lettering):
        words = " ".join(rng.sample(WORDS, rng.randint(1, min(spec.max_words, len(WORDS)))))
        style, surface, verb = rng.choice(STYLES), rng.choice(SURFACES), rng.choice(VERBS)
        text = f'a {f"{style} {surface}".strip()} {verb} "{words}"'
        if text in seen or belongs_to_eval(text, EVAL_FRACTION) != (spec.split == "eval"):
            continue
        seen.add(text)
        yield _row("lettering", text, {"text": words})
        if len(seen) == spec.lettering:
            return
    raise DataError(
        f"lettering: only {len(seen)} different {spec.split} prompts, {spec.lettering} asked "
        "for; ask less"
    )


def _oddity_rows(spec: OdditiesSpec) -> Iterator[dict[str, object]]:
    for prompt in draw_odd_prompts(spec.split, spec.oddities, spec.seed, spec.kinds):
        yield _row("oddity", prompt.text, {"digit": prompt.digit, "kind": str(prompt.oddity)})


def _row(kind: str, text: str, metadata: Mapping[str, object]) -> dict[str, object]:
    """Return a row whose id depends on its text alone, whatever file it is in."""
    return {
        "prompt": text,
        "prompt_id": f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:12]}",
        "metadata": metadata,
    }
