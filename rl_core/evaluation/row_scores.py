"""Scores of each held-out row, under the names that the evaluation's receipt uses for the means."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rl_core.errors import RecipeError
from rl_core.evaluation.rows import Row, number
from rl_core.evaluation.runner import ANSWER, COMPLETE, ERROR, PASSED, has_passed, is_graded
from rl_core.rollout.sample_ids import GROUP, SAMPLE
from rl_core.runtime.registry import nearest

ACCURACY, MEAN_REWARD = "accuracy", "mean_reward"
COMMON: dict[str, Callable[[Row], float]] = {
    ACCURACY: has_passed,
    MEAN_REWARD: lambda row: number(row, "reward"),
    "mean_length": lambda row: float(number(row, "num_tokens")),
    "truncated_share": lambda row: float(row["stop_reason"] not in COMPLETE),
}
_NO_SCORES = {
    GROUP,
    SAMPLE,
    "uid",
    "prompt",
    "response",
    "ground_truth",
    "stop_reason",
    "images",
    "made",
    "reward",
    "num_tokens",
    "data_source",
    ANSWER,
    PASSED,
    ERROR,
}


def row_scores(rows: Sequence[Row], score: str, where: str = "score") -> list[float]:
    """Return one value per row, whose mean is the receipt's score of this name; NaN for a row
    without one.

    Args: rows: result of `rl_core.evaluation.runner.read_samples`, or a set's prompts as
    `rl_core.evaluation.measures.by_prompt` returns them. where: the recipe's key, for the message.
    Raises: RecipeError naming the known scores.
    """
    further = set(rows[0]) - _NO_SCORES if rows else set()
    if score in further:
        return [math.nan if ERROR in row else float(number(row, score)) for row in rows]
    known = COMMON if rows and "reward" in rows[0] else {}
    if score not in known:
        raise RecipeError(
            f"{where}: no score {score!r}{nearest(score, sorted({*known, *further}))}"
        )
    return [math.nan if ERROR in row else known[score](row) for row in rows]


def deciding_score(rows: Sequence[Row], score: str) -> str:
    """Return the score that decides: `mean_reward` in place of an accuracy that rows do not have,
    since their rewards are graded and nothing says which of them passes."""
    if score != ACCURACY or not rows:
        return score
    graded = is_graded(rows) if "reward" in rows[0] else ACCURACY not in rows[0]
    return MEAN_REWARD if graded else score


def paired_scores(
    before: Sequence[Row], after: Sequence[Row], score: str, where: str = "score"
) -> tuple[list[float], list[float]]:
    """Return a score of the same rows, before and after, for those rows that have it both times.

    Raises: RecipeError when there is no such score, or no row has it.
    """
    both = zip(row_scores(before, score, where), row_scores(after, score, where), strict=True)
    pairs = [pair for pair in both if all(map(math.isfinite, pair))]
    if not pairs:
        raise RecipeError(
            f"{where}: no held-out row has a {score}; choose a score that the rows have"
        )
    return [one for one, _ in pairs], [two for _, two in pairs]
