"""A validation report in MLflow: counts as metrics, the first refused rows as a table, all of them
as a file."""

from collections.abc import Mapping
from pathlib import Path

from rl_core.tracking.run import RunStatus, TrackingRun
from schemas.receipts import ValidationReport

EXPERIMENT = "rl-train-validation"


def log_report(tracking: TrackingRun, report: ValidationReport) -> None:
    """Log a report into a run."""
    tracking.log_text(report.model_dump_json(indent=2), "receipts/validation.json")
    metrics = {"validation/rows": report.num_rows, "validation/accepted": report.num_accepted}
    for reason, count in report.rejected_by_reason.items():
        metrics[f"validation/rejected/{reason}"] = count
    if (found := report.contamination) is not None:
        metrics["validation/contaminated"] = found.num_rows
        if found.num_rows:
            tracking.log_artifact(Path(found.path), "validation")
    tracking.log_metrics({name: float(value) for name, value in metrics.items()}, 0)
    if report.num_rejected:
        tracking.log_table(
            [example.model_dump() for example in report.examples], "validation/examples.json"
        )
        rejects = Path(report.rejects_path or "")
        if rejects.is_file():
            tracking.log_artifact(rejects, "validation")


def log_refusal(
    tracking_uri: str,
    name: str,
    report: ValidationReport,
    *,
    tags: Mapping[str, str],
    artifact_location: Path | None = None,
) -> str:
    """Log the report of rows that no run was started for, as a failed run of its own.

    Returns: the id of that run.
    """
    tracking = TrackingRun.open(
        tracking_uri, EXPERIMENT, name, tags=tags, artifact_location=artifact_location
    )
    log_report(tracking, report)
    for source in report.files:
        tracking.log_dataset(
            Path(source.path).name,
            source.path,
            source.sha256,
            context="validation",
            num_rows=report.num_rows,
        )
    tracking.finish(RunStatus.FAILED)
    return tracking.run_id
