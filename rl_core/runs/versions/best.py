"""The iteration that a run registers: the last one, or an earlier one that is better beyond doubt.

The highest of several noisy scores is too high on average, so a point alone decides nothing: an
earlier iteration takes the place of the last only if the 95 % interval of its lead, over the same
held-out rows, excludes 0. What is compared is each iteration's evaluation with the live weights;
the chosen one is then exported and evaluated anew.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rl_core.evaluation.bootstrap import paired_bootstrap
from rl_core.evaluation.compared import compared_rows
from rl_core.evaluation.row_scores import deciding_score, paired_scores, row_scores
from rl_core.evaluation.rows import Row
from rl_core.runs.run_folder import RunFolder
from schemas.receipts import ChoiceReceipt, EvalReceipt, ExportReceipt
from schemas.recipe import Recipe
from schemas.sections.registration import Weights

RECEIPT = "choose-iteration"

Rows = Sequence[Row]


def chosen_iteration(folder: RunFolder, recipe: Recipe) -> int:
    """Return the iteration that a run exports and registers."""
    done = folder.receipt(RECEIPT, ChoiceReceipt)
    if done is None:
        return recipe.training.num_iterations
    return done.iteration


def choose(folder: RunFolder, recipe: Recipe) -> ChoiceReceipt:
    """Compare the last iteration with those before it whose checkpoints are there."""
    last, settings = recipe.training.num_iterations, recipe.registration
    exported = folder.receipt("export-model", ExportReceipt)
    if exported is not None:  # by a run of this recipe that registered its last iteration
        reason = "it was exported before the best was asked for; --fresh trains anew"
        return ChoiceReceipt(iteration=exported.iteration or last, last=last, reason=reason)
    rows = _evaluated(folder, recipe)
    final = rows.pop(last)
    score = deciding_score(final, settings.score)
    name = score if settings.set is None else f"{settings.set} {score}"
    found = []
    for iteration, earlier in rows.items():
        before, after = paired_scores(final, earlier, score, "registration.score")
        change = paired_bootstrap(before, after)
        if change.low > 0:
            scores = sum(after) / len(after), sum(before) / len(before)
            found.append((change.mean, iteration, change, scores))
    if not found:
        reason = f"no earlier iteration is better in {name} beyond doubt"
        return ChoiceReceipt(iteration=last, last=last, reason=reason)
    _, iteration, change, (best, at_end) = max(found, key=lambda one: one[:2])
    reason = (
        f"{name} {best:.3f} against {at_end:.3f} of iteration {last}, the last one: a lead of "
        f"{change.mean:+.3f} ({change.low:+.3f} to {change.high:+.3f})"
    )
    return ChoiceReceipt(iteration=iteration, last=last, reason=reason)


def worth_keeping(folder: RunFolder, recipe: Recipe) -> list[int]:
    """Return the iteration with the highest score so far, whose checkpoint must stay until the best
    is chosen; nothing if the last one is registered."""
    if recipe.registration.from_ is Weights.LAST:
        return []
    means = {}
    for iteration, rows in _evaluated(folder, recipe).items():
        score = deciding_score(rows, recipe.registration.score)
        values = [one for one in row_scores(rows, score) if math.isfinite(one)]
        if values:
            means[iteration] = sum(values) / len(values)
    if means:
        return [max(means, key=lambda one: (means[one], one))]
    return []


def _evaluated(folder: RunFolder, recipe: Recipe) -> dict[int, Rows]:
    """Return the compared rows of each evaluated iteration whose checkpoint is there."""
    found = {}
    for iteration in folder.complete_iterations():
        receipt = folder.receipt(f"evaluate-iteration-{iteration}", EvalReceipt)
        rows = None if receipt is None else compared_rows(receipt, recipe.registration)
        if rows:
            found[iteration] = rows
    return found
