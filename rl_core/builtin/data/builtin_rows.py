"""A few rows that are always here, for a run without a data file: prompts to draw, and sums.

`{builtin: train}` and `{builtin: eval}` in a recipe's data stand for them; the data source
`default` puts them there. Every prompt asks for a figure, which the rewards `digit` and `ocr` look
for, in so few words that the smallest text encoder here takes them; every sum is a row of the
environment `gsm8k`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rl_core.data.store.atomic import atomic_writer
from schemas.rows.media_prompts import MediaPrompt
from schemas.sections.section import Section

Split = Literal["train", "eval"]

_THINGS: dict[Split, str] = {
    "train": "sign mug cake door boat wall kite flag train car book shirt drum box hat coin",
    "eval": "tower bag tram scarf lamp plate rock barn",
}
_SUMMANDS: dict[Split, range] = {"train": range(2, 6), "eval": range(7, 9)}
_QUESTION = "What is {one} + {other}? End with #### and the number."


class BuiltinSpec(Section):
    """Rows that are always here, for smoke runs."""

    builtin: Split
    """Split of the rows: for training, or held out."""

    @property
    def split(self) -> Split:
        """The side of the split."""
        return self.builtin


def builtin_prompts(split: Split) -> list[MediaPrompt]:
    """Return the prompts for pictures of a split, in their order."""
    prompts: list[MediaPrompt] = []
    for number, thing in enumerate(_THINGS[split].split()):
        prompts.append(
            MediaPrompt(
                f'the number "{number % 10}" on a {thing}',
                f"builtin-{split}:{number}",
                metadata={"digit": number % 10, "text": str(number % 10)},
            )
        )
    return prompts


def media_rows(split: Split) -> list[dict[str, object]]:
    """Return the prompts for pictures as rows of a prompt file."""
    rows: list[dict[str, object]] = []
    for one in builtin_prompts(split):
        rows.append({"prompt": one.prompt, "prompt_id": one.prompt_id, "metadata": one.metadata})
    return rows


def question_rows(split: Split) -> list[dict[str, object]]:
    """Return sums as rows of the environment `gsm8k`."""
    rows: list[dict[str, object]] = []
    for one in _SUMMANDS[split]:
        for other in _SUMMANDS[split]:
            rows.append(
                {
                    "data_source": "builtin",
                    "prompt": [{"role": "user", "content": _QUESTION.format(one=one, other=other)}],
                    "env_class": "gsm8k",
                    "reward_spec": {"method": "rule", "ground_truth": str(one + other)},
                }
            )
    return rows


def planned_questions(spec: BuiltinSpec, folder: Path | str) -> Path:
    """Return the file that `materialise_questions` writes, without writing it."""
    digest = hashlib.sha256(_lines(question_rows(spec.builtin)).encode()).hexdigest()[:12]
    return Path(folder).expanduser() / f"builtin-{spec.builtin}-{digest}.jsonl"


def materialise_questions(spec: BuiltinSpec, folder: Path | str) -> Path:
    """Write the sums of `spec` once; an existing file is reused."""
    path = planned_questions(spec, folder)
    if not path.is_file():
        with atomic_writer(path) as file:
            file.write(_lines(question_rows(spec.builtin)))
    return path


def _lines(rows: Sequence[dict[str, object]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)
