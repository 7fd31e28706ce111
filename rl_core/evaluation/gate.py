"""The gate before the `champion` alias moves: the only place that decides about it.

A new model passes if its score exceeds the incumbent's by more than the margin, if a paired
bootstrap over the same held-out rows has enough confidence in that, and if no guarded score got
worse than the recipe allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rl_core.evaluation.bootstrap import paired_bootstrap
from rl_core.evaluation.row_scores import deciding_score, paired_scores
from rl_core.evaluation.rows import Row
from schemas.receipts import GateReceipt, ScoreChange
from schemas.sections.registration import GuardConfig, RegistrationConfig

Rows = Sequence[Row]


@dataclass(frozen=True)
class Judged:
    """A model to be judged, with its evaluation."""

    name: str
    """Name of the model: `champion v3`, `baseline` or `this version`."""
    rows: Rows
    """One row per held-out row, as returned by `rl_core.evaluation.compared.compared_rows`."""


def judge(challenger: Judged, incumbent: Judged, settings: RegistrationConfig) -> GateReceipt:
    """Decide if the challenger may replace the incumbent.

    Raises: RecipeError naming the known scores when the rows do not have a required one.
    """
    if uids(incumbent.rows) != uids(challenger.rows):
        return undecided(incumbent.name, f"{incumbent.name} was evaluated on other rows", settings)
    score = deciding_score([*challenger.rows, *incumbent.rows], settings.score)
    decided = _change(challenger, incumbent, score, settings.margin, "registration.score")
    place = "" if settings.set is None else f"{settings.set} "
    gain = f"{place}{score} {decided.after:.3f} against {decided.before:.3f} of {incumbent.name}"
    if not decided.change > settings.margin:
        objections = [f"{gain} is no gain of more than {settings.margin:g}"]
    elif decided.confidence < settings.confidence:
        sure = f"only {decided.confidence:.1%} sure, {settings.confidence:.1%} wanted"
        objections = [f"{gain}: a gain of more than {settings.margin:g} is {sure}"]
    else:
        objections = []
    decided = decided.model_copy(update={"held": not objections})
    guards = [
        _guarded(challenger, incumbent, score, guard) for score, guard in settings.guards.items()
    ]
    objections += [
        _objection(guard, settings.guards[guard.score]) for guard in guards if not guard.held
    ]
    return GateReceipt(
        compared_with=incumbent.name,
        decided_by=decided,
        guards=guards,
        margin=settings.margin,
        confidence=settings.confidence,
        passed=not objections,
        reason="; ".join(objections) or f"{gain}, {decided.confidence:.1%} sure",
    )


def undecided(incumbent: str, reason: str, settings: RegistrationConfig) -> GateReceipt:
    """Return a gate that stays closed, since there is nothing to compare with."""
    return GateReceipt(
        compared_with=incumbent,
        decided_by=None,
        guards=[],
        margin=settings.margin,
        confidence=settings.confidence,
        passed=False,
        reason=reason,
    )


def check_scores(rows: Rows, settings: RegistrationConfig) -> None:
    """Check that an evaluation has every score that the gate requires. Raises: RecipeError naming
    the known ones."""
    score = deciding_score(rows, settings.score)
    paired_scores(rows, rows, score, "registration.score")
    for score in settings.guards:
        paired_scores(rows, rows, score, f"registration.guards.{score}")


def uids(rows: Rows) -> list[str]:
    """Return the identities of rows, in their order."""
    return [str(row["uid"]) for row in rows]


def _change(
    challenger: Judged, incumbent: Judged, score: str, margin: float, where: str
) -> ScoreChange:
    before, after = paired_scores(incumbent.rows, challenger.rows, score, where)
    change = paired_bootstrap(before, after, margin=margin)
    return ScoreChange(
        score=score,
        before=sum(before) / len(before),
        after=sum(after) / len(after),
        low=change.low,
        high=change.high,
        confidence=change.confidence,
    )


def _guarded(challenger: Judged, incumbent: Judged, score: str, guard: GuardConfig) -> ScoreChange:
    found = _change(challenger, incumbent, score, 0.0, f"registration.guards.{score}")
    worse, allowed = _worsening(found, guard)
    return found.model_copy(update={"held": worse <= allowed})


def _worsening(found: ScoreChange, guard: GuardConfig) -> tuple[float, float]:
    """Return by how much a score got worse, and by how much it may."""
    if guard.max_drop is not None:
        return -found.change, guard.max_drop
    assert guard.max_rise is not None
    return found.change, guard.max_rise


def _objection(found: ScoreChange, guard: GuardConfig) -> str:
    verb = "fell" if guard.max_drop is not None else "rose"
    worse, allowed = _worsening(found, guard)
    return (
        f"{found.score} {verb} by {worse:.3f} ({found.before:.3f} to {found.after:.3f}), allowed "
        f"is {allowed:g}"
    )
