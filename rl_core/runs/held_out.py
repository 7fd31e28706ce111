"""One evaluation: the held-out rows and the named sets, played part by part and summarised.

Whatever answers the prompts (a trainer, a server) is a function that turns prompts into rows, so
all models are measured in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from rl_core.data.prepare.items import Item
from rl_core.evaluation.measures import summarise_set
from rl_core.evaluation.passes import FULL_REWARD, pass_mark
from rl_core.evaluation.rows import PlayedRow
from rl_core.evaluation.runner import Judging, summarise
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.receipts import EvalReceipt
from schemas.recipe import Recipe
from schemas.rows.contract import SchemaName
from schemas.sections.evaluation_sets import EvaluationSet, SampledReplies
from schemas.sections.sampling import EvaluationSampling

HELD_OUT = "held-out rows"
"""Name of the rows of `data.eval` in progress events."""
PLAYED = "held-out"
"""Phase of the event after each part: `step` of `total_steps` prompts of the set `text`."""
BATCHES_A_PART = 4
"""Batches of the rollout engine in one part, so that parts cost little."""
_MAX_SLUG = 120

Items = Sequence[Item]


class Play(Protocol):
    """Function that plays prompts."""

    def __call__(
        self, items: Items, max_new_tokens: int, choice: EvaluationSampling | None
    ) -> list[PlayedRow]:
        """Return the rows of the replies, those of a prompt adjacent.

        Args: choice: how replies are chosen, and with `SampledReplies` how many to each prompt;
        unset is one, as the recipe's `evaluation` says.
        """
        ...


def measure(
    play: Play,
    recipe: Recipe,
    items: Items,
    sets: Mapping[str, Items],
    *,
    label: str,
    step: int,
    samples: Path,
    scores: Sequence[str] = (),
) -> EvalReceipt:
    """Evaluate and return the receipt; rows are written into the folder `samples`.

    Args: items: rows of `data.eval`. sets: rows of the named sets to measure, by name. scores:
    further keys of the rows. Raises: RewardError when too many rows have no verdict.
    """
    evaluation = recipe.evaluation
    judging = _judging(recipe, [items, *sets.values()])
    path = samples / f"evaluate-{label}.jsonl"
    rows = _play_all(play, recipe, items, HELD_OUT, None)
    receipt = summarise(rows, items, label, step, path, scores=scores, judging=judging)
    measured = {}
    for name, of_set in sets.items():
        chosen = evaluation.sets[name]
        rows = _play_all(play, recipe, of_set, name, chosen)
        path = samples / set_file(label, name)
        num = chosen.samples
        measured[name] = summarise_set(rows, of_set, num, path, scores=scores, judging=judging)
    return receipt.model_copy(update={"sets": measured})


def set_file(label: str, name: str) -> str:
    """Return the name of the file with the samples of a set; a set may have any name."""
    slug = quote(name, safe=" ")
    if len(slug) > _MAX_SLUG:
        slug = f"{slug[:_MAX_SLUG]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return f"evaluate-{label}.set-{slug}.jsonl"


def sets_due(recipe: Recipe, label: str) -> list[str]:
    """Return the names of the sets that an evaluation measures. Args: label: `iteration-<n>` for
    one between iterations."""
    between = label.startswith("iteration-")
    due: list[str] = []
    for name, one in recipe.evaluation.sets.items():
        if not (between and one.at_ends_alone):
            due.append(name)
    return due


def _play_all(
    play: Play, recipe: Recipe, items: Items, name: str, chosen: EvaluationSet | None
) -> list[PlayedRow]:
    evaluation = recipe.evaluation
    max_new_tokens = evaluation.max_new_tokens
    if chosen is not None and chosen.max_new_tokens is not None:
        max_new_tokens = chosen.max_new_tokens
    num = 1 if chosen is None else chosen.samples
    size = len(items)
    if recipe.domain.traits.rows is SchemaName.PROMPT:
        at_once = recipe.rollout.max_batch_size * recipe.placement.num_devices
        size = max(1, BATCHES_A_PART * at_once // num)
    rows: list[PlayedRow] = []
    for part, start in enumerate(range(0, len(items), max(1, size))):
        choice = _usual(evaluation, part) if chosen is None else chosen.replies(part)
        rows += play(items[start : start + size], max_new_tokens, choice)
        done = min(start + size, len(items))
        announce(ProgressEvent(PLAYED, done, len(items), text=name))
    return rows


def _usual(evaluation: EvaluationSampling, part: int) -> EvaluationSampling | None:
    """Return the choice of replies to held-out rows; None where the recipe's needs no part."""
    if not part or not evaluation.temperature:
        return None
    chosen = {}
    for name in EvaluationSampling.model_fields:
        chosen[name] = getattr(evaluation, name)
    return SampledReplies(**chosen, part=part)


def _judging(recipe: Recipe, rows: Sequence[Items]) -> Judging:
    evaluation = recipe.evaluation
    allowed = evaluation.max_failed_share
    if recipe.has_pairs:
        return Judging({}, FULL_REWARD, allowed)
    env_classes = set()
    for items in rows:
        for item in items:
            if "env_class" in item:
                env_classes.add(item["env_class"])
    if evaluation.pass_mark is not None or evaluation.scorers:
        # With scorers, an environment's own full reward is only a part of the whole.
        marks = dict.fromkeys(env_classes, evaluation.pass_mark)
        return Judging(marks, evaluation.pass_mark, allowed)
    options = recipe.environments
    return Judging(
        {name: pass_mark(name, options.get(name)) for name in env_classes}, None, allowed
    )
