"""Rows of several reasoning-gym tasks at several levels, mixed by weight.

`{composite: [{task: chain_sum, level: 1}, {task: leg_counting, weight: 2}], size: 64}` in a
recipe's data stands for such rows. A level is one of the task's own curriculum in reasoning-gym:
its settings grow harder with it. With the data source `curriculum`, which draws by pass rate,
several levels of a task are a curriculum.
"""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rl_core.builtin.data.environments.base import EnvironmentRows
from rl_core.errors import DataError
from rl_core.runtime.registry import nearest
from schemas.sections.section import Section

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

_DRAWS_PER_ROW = 50
_EXTRA_DRAWS = 2000


class Member(Section):
    """One task of a composite."""

    task: str
    """Name of a reasoning_gym task."""
    weight: float = Field(default=1.0, gt=0)
    """Frequency with which it is drawn, relative to the others."""
    level: int | None = Field(default=None, ge=0)
    """Level of the task's curriculum, from 0; unset takes the task's default settings."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of the task, over those of its level."""


class CompositeRows(EnvironmentRows):
    """Problems of several reasoning-gym tasks."""

    composite: list[Member] = Field(min_length=1)
    """The tasks; one may be there several times, at several levels."""
    size: int = Field(ge=1)  # pyright: ignore[reportIncompatibleVariableOverride]
    """Number of rows."""
    env_class: str = "reasoning_gym"
    """Environment that scores the answers."""
    prompt_suffix: str = ""
    """Text appended to every question."""

    @property
    def source(self) -> str:
        """Name of the composite in messages and file names."""
        return "reasoning_gym/" + "+".join(dict.fromkeys(one.task for one in self.composite))

    @property
    def shuffled(self) -> bool:
        """False: the tasks are drawn at random already."""
        return False

    def tasks(self) -> Iterator[dict[str, object]]:
        """Yield problems, each question once."""
        num_draws = _EXTRA_DRAWS + int(_DRAWS_PER_ROW * self.size / min(self.eval_fraction, 0.5))
        first = self.seed or 0
        configs = [_config(one) for one in self.composite]
        datasets = [
            # Apart, since problem i of seed s is drawn from s + i.
            _dataset(one, config, first + place * num_draws, num_draws)
            for place, (one, config) in enumerate(zip(self.composite, configs, strict=True))
        ]
        rng = random.Random(f"composite {self.seed}")
        weights = [one.weight for one in self.composite]
        seen: set[str] = set()
        for index in count():
            if index == num_draws:
                return
            (place,) = rng.choices(range(len(weights)), weights=weights)
            member, dataset = self.composite[place], datasets[place]
            entry = dataset[index]
            question = str(entry["question"])
            if question in seen:
                continue
            seen.add(question)
            config = configs[place] | {"size": num_draws}
            yield {
                "key": question,
                "data_source": f"reasoning_gym/{member.task}"
                + ("" if member.level is None else f"/{member.level}"),
                "prompt": [{"role": "user", "content": question + self.prompt_suffix}],
                "reward_spec": {"method": "rule", "ground_truth": entry["answer"]},
                "extra_info": {
                    "task": member.task,
                    "seed": first + place * num_draws,
                    "index": index,
                    "level": member.level,
                    # As text, since each task has settings of its own.
                    "config": json.dumps(config, sort_keys=True),
                    "question": question,
                    "split": self.split,
                },
            }


def _config(member: Member) -> dict[str, object]:
    """Return a task's settings: those of its level, with its own over them."""
    from reasoning_gym.factory import DATASETS, create_curriculum, has_curriculum

    if member.task not in DATASETS or member.task == "composite":
        raise DataError(
            f"unknown reasoning_gym task {member.task!r}{nearest(member.task, list(DATASETS))}"
        )
    levelled: dict[str, object] = {}
    if member.level is not None:
        if not has_curriculum(member.task):
            raise DataError(f"task {member.task}: level {member.level}: it has no curriculum")
        curriculum = create_curriculum(member.task)
        highest = max((len(one.levels) for one in curriculum.attributes.values()), default=1) - 1
        if member.level > highest:
            raise DataError(
                f"task {member.task}: level {member.level}: its curriculum ends at {highest}"
            )
        curriculum.set_global_level(member.level)
        levelled = dataclasses.asdict(curriculum.generate_configuration())
    known = set(DATASETS[member.task][1].__dataclass_fields__) - {"seed", "size"}
    for key in member.config.keys() - known:
        raise DataError(
            f"task {member.task}: unknown setting {key!r} in config{nearest(key, sorted(known))}"
        )
    levelled = {key: value for key, value in levelled.items() if key in known}
    return levelled | member.config


def _dataset(member: Member, config: dict[str, Any], seed: int, size: int) -> ProceduralDataset:
    import reasoning_gym

    try:
        return reasoning_gym.create_dataset(member.task, size=size, seed=seed, **config)
    except (AssertionError, TypeError, ValueError) as error:
        raise DataError(f"task {member.task}: config {config} is refused: {error}") from error
