"""The rows of an evaluation by which models are compared: held-out rows, or the prompts of the set
that the gate names."""

from __future__ import annotations

from collections.abc import Sequence

from rl_core.evaluation.measures import by_prompt
from rl_core.evaluation.rows import PlayedRow, Row
from rl_core.evaluation.runner import read_samples
from schemas.receipts import EvalReceipt, SetReceipt
from schemas.sections.registration import RegistrationConfig


def compared_rows(receipt: EvalReceipt, settings: RegistrationConfig) -> Sequence[Row] | None:
    """Return a row per held-out row, or per prompt of the set that decides; None if the evaluation
    left that set out."""
    if settings.set is None:
        return read_samples(receipt.samples_path)
    found = receipt.sets.get(settings.set)
    if found is None:
        return None
    return prompts_of(read_samples(found.samples_path), found)


def prompts_of(rows: Sequence[PlayedRow], like: SetReceipt) -> list[dict[str, str | float]]:
    """Return a row per prompt from the samples of a set. Args: like: receipt of an evaluation on
    the same set."""
    scorers = [name for name in like.measures if rows and name in rows[0]]
    return by_prompt(rows, like.num_samples, scorers)
