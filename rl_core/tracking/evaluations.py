"""Evaluations in MLflow: every score as a metric, the samples, and the receipt with its
intervals."""

from __future__ import annotations

from pathlib import Path

from rl_core.tracking.run import TrackingRun
from schemas.receipts import EvalReceipt


def log_evaluation(tracking: TrackingRun, receipt: EvalReceipt, prefix: str) -> None:
    """Log an evaluation at its step.

    Args: prefix: first part of the metrics' names, as in `eval/accuracy` and
    `eval/<set>/<source>/pass@4`.
    """
    values = receipt.values() | {
        "mean_length": receipt.mean_length,
        "truncated_share": receipt.truncated_share,
    }
    if receipt.num_failed:
        values["failed_rows"] = float(receipt.num_failed)
    for name, one in receipt.sets.items():
        if one.num_failed:
            values[f"{name}/failed_rows"] = float(one.num_failed)
        for source, measures in one.sources.items():
            for measure, found in measures.items():
                values[f"{name}/{source}/{measure}"] = found.value
    tracking.log_metrics({f"{prefix}/{name}": one for name, one in values.items()}, receipt.step)
    for path in (receipt.samples_path, *(one.samples_path for one in receipt.sets.values())):
        tracking.log_artifact(Path(path), "samples")
    if receipt.sets:
        text = receipt.model_dump_json(indent=2)
        tracking.log_text(text, f"receipts/evaluate-{receipt.label}.json")
