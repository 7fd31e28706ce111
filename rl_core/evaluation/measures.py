"""Measures of a named set: one value per prompt from its samples, and their means with intervals.

| measure | of a prompt with n samples |
|---|---|
| `mean_reward` | mean of the rewards |
| `accuracy`, with several samples `avg@n` | share of the samples that passed |
| `pass@k` | estimated probability that at least one of k samples passes, k = 2, 4, 8, ... n |
| `maj@n` | whether the most frequent answer passes |
| `format_rate` | share of the samples in which the environment found an answer |
| `mean_length`, `truncated_share` | tokens, and share of the samples that were cut off |

Those about passing are left out where nothing says which reward passes, `maj@n` and `format_rate`
where the environment reads no answers (`rl_core.envs.answers`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rl_core.data.prepare.items import Item
from rl_core.evaluation.estimators import majority_passes, mean_interval, pass_at_k
from rl_core.evaluation.rows import PlayedRow, Row, number
from rl_core.evaluation.runner import (
    ANSWER,
    COMPLETE,
    ERROR,
    Judging,
    eval_digest,
    has_passed,
    is_graded,
    judged,
    write_rows,
)
from schemas.receipts import Measure, SetReceipt

SOURCE: Final = "data_source"
ACCURACY = "accuracy"
_NAMES = ("uid", SOURCE)
"""Keys of a prompt's row that are no measures."""
UNNAMED = "other"
"""Source of rows that name none."""


def by_prompt(
    rows: Sequence[PlayedRow], num_samples: int, scores: Sequence[str] = ()
) -> list[dict[str, str | float]]:
    """Return a row per prompt with its `uid`, `data_source` and measures; NaN for a measure that
    needs more samples than have a verdict.

    Args: rows: samples of a prompt adjacent. num_samples: of each prompt. scores: further keys of
    the rows.
    """
    passes_known = not is_graded(rows)
    reads = any(ANSWER in row for row in rows)
    prompts = []
    for start in range(0, len(rows), num_samples):
        samples = rows[start : start + num_samples]
        kept = [row for row in samples if ERROR not in row]
        found: dict[str, str | float] = {
            "uid": samples[0]["uid"],
            SOURCE: samples[0].get(SOURCE, UNNAMED),
            "mean_reward": _mean([row["reward"] for row in kept]),
        }
        if passes_known:
            found |= _of_passes(kept, num_samples, reads=reads)
        if reads:
            found["format_rate"] = _mean([float(bool(row.get(ANSWER))) for row in kept])
        found |= {name: _mean([row[name] for row in kept]) for name in scores}
        found["mean_length"] = _mean([row["num_tokens"] for row in kept])
        found["truncated_share"] = _mean([row["stop_reason"] not in COMPLETE for row in kept])
        prompts.append(found)
    return prompts


def summarise_set(
    rows: Sequence[PlayedRow],
    items: Sequence[Item],
    num_samples: int,
    samples_path: Path,
    *,
    scores: Sequence[str] = (),
    judging: Judging,
) -> SetReceipt:
    """Return the receipt of a named set; write the rows, with their `data_source`, to
    `samples_path`.

    Args: rows: samples of a prompt adjacent. items: one per prompt. Raises: RewardError when more
    rows than allowed have no verdict.
    """
    of_rows = [item for item in items for _ in range(num_samples)]
    rows = [
        PlayedRow({**row, SOURCE: source_of(item)})
        for row, item in zip(judged(rows, of_rows, judging), of_rows, strict=True)
    ]
    write_rows(samples_path, rows)
    prompts = by_prompt(rows, num_samples, scores)
    sources = {}
    for name in _sources(prompts):
        sources[name] = [one for one in prompts if one[SOURCE] == name]
    return SetReceipt(
        num_prompts=len(items),
        num_samples=num_samples,
        num_failed=sum(ERROR in row for row in rows),
        measures=measures_of(prompts),
        sources={name: measures_of(found) for name, found in sources.items()},
        samples_path=str(samples_path),
        eval_digest=eval_digest(items),
    )


def measures_of(prompts: Sequence[Row]) -> dict[str, Measure]:
    """Return the mean of each measure over prompts, with its interval; prompts without a value are
    left out, and so is a measure that no prompt has."""
    names = [name for name in prompts[0] if name not in _NAMES]
    if any(name.startswith("avg@") for name in names):
        names.remove(ACCURACY)
    measures = {}
    for name in names:
        known = [number(one, name) for one in prompts]
        values = [float(value) for value in known if math.isfinite(value)]
        if values:
            low, high = mean_interval(values)
            measures[name] = Measure(value=sum(values) / len(values), low=low, high=high)
    return measures


def source_of(item: Item) -> str:
    """Return the `data_source` of a prepared row."""
    return str(item.get("env_extras", {}).get(SOURCE) or UNNAMED)


def _of_passes(samples: Sequence[PlayedRow], num_samples: int, *, reads: bool) -> dict[str, float]:
    passes = [has_passed(row) for row in samples]
    found = {ACCURACY: _mean(passes)}
    if num_samples == 1:
        return found
    found[f"avg@{num_samples}"] = found[ACCURACY]
    for k in _ks(num_samples):
        found[f"pass@{k}"] = pass_at_k(len(passes), int(sum(passes)), k)
    if reads:
        answers = [row.get(ANSWER, "") for row in samples]
        found[f"maj@{num_samples}"] = majority_passes(answers, passes) if passes else math.nan
    return found


def _ks(num_samples: int) -> list[int]:
    powers = []
    for power in range(1, num_samples.bit_length()):
        if 2**power < num_samples:
            powers.append(2**power)
    return [*powers, num_samples]


def _sources(prompts: Sequence[Row]) -> list[str]:
    names = sorted({str(one[SOURCE]) for one in prompts})
    return names if len(names) > 1 else []


def _mean(values: Sequence[float]) -> float:
    known = [float(value) for value in values if not math.isnan(value)]
    if known:
        return sum(known) / len(known)
    return math.nan
