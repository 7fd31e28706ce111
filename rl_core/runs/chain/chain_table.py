"""The table of a chain's stages: which model each started from, its scores and its version."""

from collections.abc import Mapping
from pathlib import Path

from rl_core.runs.chain.chains import LoadedChain, Stage
from rl_core.runs.run_folder import RunFolder
from schemas.receipts import EvalReceipt, ModelReceipt

WHY = "why"
"""Column with the gate's sentence."""


def stage_rows(chain: LoadedChain, trained: Mapping[str, ModelReceipt]) -> list[dict[str, object]]:
    """Return a table row for each stage of a chain.

    Args: trained: results of the stages that were trained, by name.
    """
    return [_row(stage, trained.get(stage.name)) for stage in chain.stages]


def _row(stage: Stage, trained: ModelReceipt | None) -> dict[str, object]:
    start = stage.starts_from or stage.recipe.model.path
    row: dict[str, object] = {"stage": stage.name, "recipe": stage.title, "starts from": start}
    if trained is None:
        return row | {"score": "", "before": "", "after": "", "version": "", WHY: "not run"}
    folder = RunFolder(Path(trained.model_path).parent)
    score = _score(stage, trained)
    before, after = (
        _value(folder.receipt(f"evaluate-{label}", EvalReceipt), score)
        for label in ("baseline", "final")
    )
    return row | {
        "score": score,
        "before": before,
        "after": after,
        "version": f"{trained.name} v{trained.version}",
        WHY: trained.reason,
    }


def _score(stage: Stage, trained: ModelReceipt) -> str:
    decided = trained.gate.decided_by
    settings = stage.recipe.registration
    score = settings.score if decided is None else decided.score
    if settings.set is None:
        return score
    return f"{settings.set}/{score}"


def _value(receipt: EvalReceipt | None, score: str) -> str:
    value = None if receipt is None else receipt.values().get(score)
    return "" if value is None else f"{value:.3f}"
