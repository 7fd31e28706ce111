"""The gate before the `champion` alias moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rl_core.errors import RecipeError
from rl_core.registry import nearest
from schemas.receipts import EvalReceipt

ACCURACY = "accuracy"


@dataclass(frozen=True)
class Incumbent:
    """What a new model is compared with."""

    name: str
    """`champion v3` or `baseline`."""
    scores: Mapping[str, float]
    """By name, as in `EvalReceipt.values`."""
    eval_digest: str


@dataclass(frozen=True)
class Verdict:
    """Outcome of the gate, with its reason in words."""

    promoted: bool
    reason: str


def judge(final: EvalReceipt, incumbent: Incumbent, margin: float, score: str = ACCURACY) -> Verdict:
    """Promote only on a gain of more than `margin` in `score`, measured on the very same held-out rows.

    Raises: RecipeError naming the known scores when the evaluation has no such one.
    """
    value = score_of(final, score)
    if incumbent.eval_digest != final.eval_digest:
        return Verdict(False, f"{incumbent.name} was evaluated on other rows; evaluate it on these before comparing")
    if score not in incumbent.scores:
        return Verdict(False, f"{incumbent.name} has no {score}; evaluate it anew before comparing")
    before = incumbent.scores[score]
    if value - before > margin:
        return Verdict(True, f"{score} {value:.3f} beats {incumbent.name} ({before:.3f}) by {value - before:+.3f}")
    return Verdict(False, f"{score} {value:.3f} does not beat {incumbent.name} ({before:.3f}) by more than {margin}")


def score_of(receipt: EvalReceipt, score: str) -> float:
    """A score of an evaluation. Raises: RecipeError naming the known ones."""
    known = receipt.values()
    if score not in known:
        raise RecipeError(f"registration.score: no score {score!r}{nearest(score, sorted(known))}")
    return known[score]
