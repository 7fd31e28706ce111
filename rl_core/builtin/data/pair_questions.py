"""The questions of generated pairs as prompts, for training on what a reward model of these pairs
says about new replies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from rl_core.builtin.data.pair_fixture import generated_rows, text_digest
from rl_core.builtin.data.reasoning_problems import belongs_to_eval
from rl_core.data.store.atomic import atomic_writer
from schemas.sections.preference import PairFixture
from schemas.sections.section import Section


class PairQuestionsSpec(Section):
    """A fixture of pairs whose questions are the prompts, and chosen answers the truths."""

    fixture: Literal[PairFixture.TEXT, PairFixture.COURTESY]
    """Generated pairs."""
    num_rows: int = Field(default=400, ge=4)
    """Number of pairs to generate."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the generated pairs."""
    split: Literal["train", "eval"] = "train"
    """Side of the split by question."""
    eval_fraction: float = Field(default=0.1, gt=0, lt=1)
    """Share of all questions that belongs to `eval`."""
    size: int | None = Field(default=None, ge=1)
    """Maximum number of questions to use, from the start; unset uses all."""


def planned_pair_questions(spec: PairQuestionsSpec, folder: Path | str) -> Path:
    """Return the file that `materialise_pair_questions` writes, without writing it."""
    name = f"questions-{spec.fixture}-{spec.split}-{text_digest(spec.model_dump(mode='json'))}"
    return Path(folder).expanduser() / f"{name}.jsonl"


def materialise_pair_questions(spec: PairQuestionsSpec, folder: Path | str) -> Path:
    """Write the questions of `spec` once as rows of the environment `open_ended`; an existing file
    is reused. Raises: DataError when there are too few."""
    path = planned_pair_questions(spec, folder)
    if path.is_file():
        return path
    pairs = generated_rows(spec.fixture, spec.num_rows, spec.seed)
    wanted = spec.split == "eval"
    kept = []
    for one in pairs:
        if belongs_to_eval(one["question"], spec.eval_fraction) == wanted:
            kept.append(one)
    with atomic_writer(path) as file:
        for pair in kept[: spec.size]:
            file.write(json.dumps(_row(spec.fixture, pair)) + "\n")
    return path


def _row(fixture: PairFixture, pair: dict[str, str]) -> dict[str, object]:
    return {
        "data_source": f"pairs/{fixture}",
        "prompt": [{"role": "user", "content": pair["question"]}],
        "env_class": "open_ended",
        "reward_spec": {"method": "rule", "ground_truth": pair["chosen"]},
    }
