"""Prompts in tokens: which are too long, which have control tokens of the model's in their text,
and which its chat template refuses.

A run counts while it prepares; with a tokenizer at hand, validation counts in the same way.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from rl_core.data.check.groups import Groups
from rl_core.data.check.parts import CheckSettings
from rl_core.data.prepare.items import PromptItem
from rl_core.data.prepare.prompt_items import ItemMaker
from rl_core.data.prepare.prompt_lengths import LengthCounter
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.data.read.readers import normalise, raw_values
from rl_core.envs.tool_env.offer import Offers
from rl_core.errors import DataError
from schemas.receipts import Rejection, ValidationReport
from schemas.rows.contract import SchemaName
from schemas.rows.problems import Problem

BATCH = 1024
NUM_EXAMPLES = 2
TOO_LONG = "longer than max_prompt_length"
CONTROL_TOKEN = "contains a control token"
REFUSED = "refused by the model"


@dataclass(frozen=True)
class TokenSettings:
    """Settings of the count."""

    tokenizer: Tokenizer
    max_prompt_length: int
    template_kwargs: Mapping[str, object] = field(default_factory=dict)
    cache_dir: Path | None = None
    """Folder of the counts; None keeps none."""


def with_tokens(
    report: ValidationReport,
    files: Sequence[Path],
    settings: CheckSettings,
    tokens: TokenSettings,
) -> ValidationReport:
    """Add to a report what the count finds: a warning for each prompt that a run would drop or
    that has control tokens, a refusal for each that the model cannot read."""
    warnings, problems = Groups(report.warnings), Groups(report.problems)
    refused: list[Rejection] = []
    num_refused = 0
    bad = _bad_rows(report)
    offer = Offers({} if settings.trials is None else settings.trials.options)
    counter = LengthCounter(
        tokens.tokenizer, tokens.template_kwargs, cache_dir=tokens.cache_dir, offer=offer
    )
    with closing(offer):
        for file in files:
            if report.schemas.get(str(file)) != SchemaName.PROMPT:
                continue
            rows = _good_items(file, settings, bad)
            while batch := list(islice(rows, BATCH)):
                for number, item, count in _counted(batch, file, counter):
                    if isinstance(count, str):
                        problem = Problem(
                            "prompt", REFUSED, _text(item), f"another prompt ({count})"
                        )
                        found = problem.rejection(str(file), number)
                        problems.add([found])
                        refused = [*refused, found][:NUM_EXAMPLES]
                        num_refused += 1
                    else:
                        warnings.add(_control_tokens(item, str(file), number, counter))
                    if isinstance(count, int) and count > tokens.max_prompt_length:
                        expected = f"at most {tokens.max_prompt_length}; a run drops this row"
                        problem = Problem("prompt", TOO_LONG, f"{count} tokens", expected)
                        warnings.add([problem.rejection(str(file), number)])
    reasons = Counter(report.rejected_by_reason) + Counter({REFUSED: num_refused})
    return report.model_copy(
        update={
            "warnings": warnings.in_order(),
            "problems": problems.in_order(),
            "num_accepted": report.num_accepted - num_refused,
            "rejected_by_reason": dict(reasons.most_common()),
            "examples": [*report.examples, *refused],
        }
    )


def _control_tokens(
    item: PromptItem, file: str, number: int, counter: LengthCounter
) -> list[Rejection]:
    """Return a warning for each message that has control tokens."""
    control = counter.template.control_tokens
    expected = "text alone; the model reads it as text, not as a token"
    rejections: list[Rejection] = []
    for index, message in enumerate(item["prompt"]):
        if found := control.in_message(message):
            rejections.append(
                Problem(f"prompt[{index}].content", CONTROL_TOKEN, found[0], expected).rejection(
                    file, number
                )
            )
    return rejections


def _bad_rows(report: ValidationReport) -> set[tuple[str, int]]:
    if not report.num_rejected or report.rejects_path is None:
        return set()
    with Path(report.rejects_path).open(encoding="utf-8") as lines:
        return {(sys.intern(one["file"]), one["row"]) for one in map(json.loads, lines)}


def _good_items(
    file: Path, settings: CheckSettings, bad: set[tuple[str, int]]
) -> Iterator[tuple[int, PromptItem]]:
    make = ItemMaker(default_env_class=settings.default_env_class)
    for raw in raw_values(file, prompt_key=settings.prompt_key, on_bad_line=lambda *_: None):
        if (str(file), raw.number) not in bad:
            row = normalise(raw.value, settings.prompt_key)
            yield raw.number, make(row, f"{file}:{raw.number}", file)


def _counted(
    batch: Sequence[tuple[int, PromptItem]], file: Path, counter: LengthCounter
) -> Iterator[tuple[int, PromptItem, int | str]]:
    """Yield each row with its number of tokens, or the reason why it has none."""
    try:
        items = [item for _, item in batch]
        counts = counter.lengths(items, [f"{file}:{number}" for number, _ in batch])
    except DataError as error:
        if len(batch) == 1:
            place = f"{file}:{batch[0][0]}"
            reason = str(error).removeprefix(place).removeprefix(":").strip()
            yield (*batch[0], reason)
            return
        for one in batch:
            yield from _counted([one], file, counter)
        return
    for (number, item), count in zip(batch, counts, strict=True):
        yield number, item, count


def _text(item: PromptItem) -> object:
    return item["prompt"][-1].get("content")
