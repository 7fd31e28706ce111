"""The task validate-data: check every row of every file against its contract, before anything
costly starts."""

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.tasks import exponential_backoff

from rl_core.data.check.files import apply_policy, check_files
from rl_core.data.prepare.row_files import compared_rows, row_files
from rl_core.data.read.recipe_files import check_settings, contamination_of
from rl_core.distributed.cluster import configured_address
from rl_core.distributed.ray_data.validation import cluster_runner
from rl_core.runtime.home import Home
from rl_core.tracking.artifacts import with_artifacts
from rl_core.tracking.validation import log_refusal
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.receipts import ContaminationReport, ValidationReport
from schemas.recipe import Recipe
from tasks.prefect_ui import artifacts
from tasks.prefect_ui.flow_links import flow_run_tags
from tasks.retrying import worth_retrying


@task(
    name="validate-data",
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=worth_retrying,
)
def validate_data(recipe: dict[str, object]) -> ValidationReport:
    """Validate a recipe's training and held-out rows; the report is published whether the rows may
    be used or not.

    Raises: DataError naming file, row, field and value.
    """
    home = Home.default()
    settings = Recipe.model_validate(with_artifacts(recipe, home.mlflow_uri))
    address = configured_address(settings.placement.ray_address)
    files = train, held_out = row_files(settings, home)
    contamination = contamination_of(settings, home.data)
    pairs = settings.has_pairs
    report = check_files(
        train,
        check_settings(settings),
        held_out=held_out,
        contamination=contamination,
        sides=compared_rows(settings, home, files, contamination) if pairs else None,
        rejects_dir=home.data / "rejects" / settings.name,
        memo_dir=home.data / "memo",
        runner=cluster_runner(address) if address else None,
    )
    announce(ProgressEvent("done", receipt=report))
    _publish(report)
    try:
        apply_policy(report, settings.data.on_invalid, settings.data.max_bad_fraction)
    except Exception:
        _log_refusal(settings.name, report, home)
        raise
    return report


def _publish(report: ValidationReport) -> None:
    counts: list[dict[str, object]] = [
        {"what": "rows", "count": report.num_rows},
        {"what": "accepted", "count": report.num_accepted},
        {"what": "refused", "count": report.num_rejected},
        *(
            {"what": f"refused: {reason}", "count": count}
            for reason, count in report.rejected_by_reason.items()
        ),
    ]
    artifacts.table(
        "validation", counts, f"Rows checked against their contract; {report.explanation}"
    )
    if report.examples:
        rows = []
        for one in report.examples:
            rows.append({"row": f"{one.file}:{one.row}", **one.model_dump(exclude={"file", "row"})})
        artifacts.table(
            "validation-refused-rows",
            rows,
            f"The first refused rows; all are in {report.rejects_path}",
        )
    if report.warnings:
        doubtful = []
        for group in report.warnings:
            for one in group.first:
                doubtful.append(
                    {"row": f"{one.file}:{one.row}", **one.model_dump(exclude={"file", "row"})}
                )
        artifacts.table(
            "validation-doubtful-rows",
            doubtful,
            f"Rows that are used but hardly teach anything; all are in {report.warnings_path}",
        )
    if report.contamination is not None and report.contamination.num_rows:
        _publish_contamination(report.contamination)


def _publish_contamination(found: ContaminationReport) -> None:
    rows = []
    for pair in found.pairs:
        for one in pair.first:
            rows.append(
                {
                    "training row": f"{one.file}:{one.row}",
                    "repeats": f"{one.other_file}:{one.other_row}",
                    "how": one.kind.value,
                    "share": one.share,
                    "passage": one.passage,
                    "rows of these files": pair.count,
                }
            )
    artifacts.table(
        "validation-contamination",
        rows,
        f"{found.num_rows} training rows repeat held-out rows or rows of a benchmark "
        f"({found.policy}); all are in {found.path}",
    )


def _log_refusal(name: str, report: ValidationReport, home: Home) -> None:
    log_refusal(
        home.mlflow_uri,
        name,
        report,
        tags=flow_run_tags(),
        artifact_location=home.artifact_location,
    )
