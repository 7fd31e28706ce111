"""validate-data: every row of every file against the schema, before anything costly starts."""

from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from rl_core.data.resolve import resolve_sources, validation_settings
from rl_core.data.validate import validate_files
from rl_core.home import Home
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.receipts import ValidationReport
from schemas.recipe import Recipe
from tasks import artifacts


@task(name="validate-data", cache_policy=NO_CACHE)
def validate_data(recipe: dict[str, Any]) -> ValidationReport:
    """Validate a recipe's training and held-out files. Raises: DataError naming file, row, field and value."""
    settings, home = Recipe.model_validate(recipe), Home.default()
    paths = resolve_sources([*settings.data.train, *settings.data.eval], home.data)
    report = validate_files(
        paths,
        rejects_dir=home.data / "rejects" / settings.name,
        memo_dir=home.data / "memo",
        **validation_settings(settings),
    )
    announce(ProgressEvent("done", receipt=report))
    _publish(report)
    return report


def _publish(report: ValidationReport) -> None:
    rows: list[dict[str, Any]] = [
        {"what": "rows", "value": report.num_rows},
        {"what": "accepted", "value": report.num_accepted},
        *({"what": f"rejected: {reason}", "value": count} for reason, count in report.rejected_by_reason.items()),
        *({"what": "first rejections", "value": str(example)} for example in report.examples),
        {"what": "why", "value": report.explanation},
    ]
    artifacts.table("validation", rows, "Rows checked against the schema")
