"""Procedural problems with checkable answers (reasoning_gym), written once as a file of SkyRL rows.

Training reads the file, so a task that draws differently in another process or version changes
nothing. A question belongs to train or eval by the sha256 of its text alone, so the splits never
share one, regardless of seeds and sizes. Note that reasoning_gym draws problem i of seed s from `s
+ i`: adjacent seeds give nearly the same problems, and a held-out set made by another seed would
not be held out.
"""

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from rl_core.data.store.atomic import atomic_writer
from rl_core.errors import DataError
from rl_core.runtime.registry import nearest
from schemas.sections.section import Section

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

_FORMAT_VERSION = "1"
_DRAWS_PER_ROW = 20
_EXTRA_DRAWS = 2000


class GenerateSpec(Section):
    """Task, number and form of the problems to generate."""

    task: str
    """Name of a reasoning_gym task, such as chain_sum."""
    size: int = Field(ge=1)
    """Number of rows in this split."""
    seed: int = 0
    """First seed of the draws; adjacent seeds overlap."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the task, for example {min_terms: 2, max_terms: 2}."""
    split: Literal["train", "eval"] = "train"
    """Side of the split by question."""
    eval_fraction: float = Field(default=0.2, ge=0, le=1)
    """Share of all questions that belongs to `eval`."""
    distinct: bool = True
    """Keep each question once."""
    system_prompt: str | None = None
    """System message before the question; unset sends none."""
    prompt_suffix: str = ""
    """Text appended to every question."""
    env_class: str = "reasoning_gym"
    """Environment that scores the answers."""


def planned_path(spec: GenerateSpec, folder: Path | str) -> Path:
    """Return the file at which `materialise` writes the rows of this spec, without generating
    them."""
    text = json.dumps({"format": _FORMAT_VERSION, **spec.model_dump()}, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Path(folder).expanduser() / f"{spec.task}-{spec.split}-{digest}.jsonl"


def materialise(spec: GenerateSpec, folder: Path | str) -> Path:
    """Write the rows of `spec` once; an existing file is reused.

    Raises: DataError for an unknown task or setting, or when the task has fewer different questions
    than requested.
    """
    path = planned_path(spec, folder)
    if not path.is_file():
        with atomic_writer(path) as file:
            for row in _rows(spec):
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    return path


def belongs_to_eval(question: str, eval_fraction: float) -> bool:
    """Return True if a question is held out: its sha256, as a number in [0, 1), is below
    `eval_fraction`."""
    return int(hashlib.sha256(question.encode()).hexdigest()[:13], 16) / 16**13 < eval_fraction


def _rows(spec: GenerateSpec) -> Iterator[dict[str, object]]:
    share = spec.eval_fraction if spec.split == "eval" else 1 - spec.eval_fraction
    if share <= 0:
        raise DataError(
            f"task {spec.task}: eval_fraction {spec.eval_fraction:g} leaves no rows for "
            f"{spec.split}"
        )
    num_draws = math.ceil(_DRAWS_PER_ROW * spec.size / share) + _EXTRA_DRAWS
    dataset = _dataset(spec, num_draws)
    seen: set[str] = set()
    num_rows = 0
    for index in range(num_draws):
        entry = dataset[index]
        question = str(entry["question"])
        held_out = belongs_to_eval(question, spec.eval_fraction)
        if held_out != (spec.split == "eval") or (spec.distinct and question in seen):
            continue
        seen.add(question)
        yield _row(spec, index, question, entry["answer"])
        num_rows += 1
        if num_rows == spec.size:
            return
    raise DataError(
        f"task {spec.task}: only {num_rows} different {spec.split} questions in {num_draws} "
        f"draws, size asks for {spec.size}; lower size, widen the task's config, or set "
        "distinct: false"
    )


def _dataset(spec: GenerateSpec, size: int) -> "ProceduralDataset":
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if spec.task not in DATASETS:
        raise DataError(
            f"unknown reasoning_gym task {spec.task!r}{nearest(spec.task, list(DATASETS))}"
        )
    reserved = {"seed", "size"} & spec.config.keys()
    if reserved:
        raise DataError(
            f"task {spec.task}: {', '.join(sorted(reserved))} in config; set it beside config "
            "instead"
        )
    known = set(DATASETS[spec.task][1].__dataclass_fields__) - {"seed", "size"}
    for key in spec.config.keys() - known:
        raise DataError(
            f"task {spec.task}: unknown setting {key!r} in config{nearest(key, sorted(known))}"
        )
    try:
        return reasoning_gym.create_dataset(spec.task, size=size, seed=spec.seed, **spec.config)
    except (AssertionError, TypeError, ValueError) as error:
        raise DataError(f"task {spec.task}: config {spec.config} is refused: {error}") from error


def _row(spec: GenerateSpec, index: int, question: str, answer: object) -> dict[str, object]:
    system = [{"role": "system", "content": spec.system_prompt}] if spec.system_prompt else []
    return {
        "data_source": f"reasoning_gym/{spec.task}",
        "prompt": [*system, {"role": "user", "content": question + spec.prompt_suffix}],
        "env_class": spec.env_class,
        "reward_spec": {"method": "rule", "ground_truth": answer},
        "extra_info": {
            "task": spec.task,
            "seed": spec.seed,
            "index": index,
            "config": spec.config,
            "question": question,
            "split": spec.split,
        },
    }
