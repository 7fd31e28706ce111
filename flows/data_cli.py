"""The command `rl-train validate` and the group `rl-train data`: work on row files outside any
run."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_core.data.read.foreign_rows import RowFormat
from rl_core.errors import RecipeError
from rl_core.runtime.home import Home
from schemas.column_map import ColumnMap, ColumnMapError
from schemas.contract import SchemaName

if TYPE_CHECKING:
    from schemas.receipts import ValidationReport

data = typer.Typer(help="Make and convert row files.", no_args_is_help=True)

Sources = Annotated[
    list[str],
    typer.Argument(help="Files (.parquet .jsonl .json .txt), globs, folders, dataset names"),
]


Mapped = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        help="Make a column from another one: prompt=question, 'ground_truth=answer|after:####'",
    ),
]


class ReportFormat(StrEnum):
    """Output format of a report."""

    TABLE = "table"
    """A table for people."""
    JSON = "json"
    """The whole report as one object."""


def validate(
    paths: Sources,
    schema: Annotated[
        SchemaName | None, typer.Option(help="Contract of the rows; unset: recognised")
    ] = None,
    format: Annotated[
        ReportFormat, typer.Option(help="How to print the report")
    ] = ReportFormat.TABLE,
    env_class: Annotated[
        str | None, typer.Option(help="Environment of rows that name none")
    ] = None,
    prompt_key: Annotated[str, typer.Option(help="Column that holds the prompt")] = "prompt",
    held_out: Annotated[
        list[str] | None, typer.Option(help="Evaluation files, which must share no question")
    ] = None,
    media_root: Annotated[
        Path | None, typer.Option(help="Where relative media paths begin")
    ] = None,
    check_remote: Annotated[
        bool, typer.Option("--check-remote", help="Fetch remote media too")
    ] = False,
    mapped: Mapped = None,
) -> None:
    """Validate rows against their contract; every bad row is listed, and the exit code is 2 if
    there is one."""
    from rl_core.data.check.files import apply_policy, check_files
    from rl_core.data.check.parts import CheckSettings
    from rl_core.data.read.mapped import mapped_files
    from rl_core.data.read.sources import data_files
    from rl_core.envs import accepted_ground_truths
    from schemas.media_checks import MediaLimits

    home = Home.default()
    chosen = SchemaName.PROMPT if schema is None and env_class is not None else schema
    limits = MediaLimits(check_remote=check_remote)
    mapping = _column_map(mapped)

    def files(sources: list[str]) -> list[Path]:
        found = [file for source in sources for file in data_files(source)]
        return mapped_files(found, mapping, home.data)

    settings = CheckSettings(
        accepted_ground_truths(), env_class, prompt_key, chosen, media_root, limits
    )
    report = check_files(
        files(paths),
        settings,
        held_out=files(held_out or []),
        rejects_dir=home.data / "rejects" / "cli",
        memo_dir=home.data / "memo",
        runner=_cluster(),
    )
    if format is ReportFormat.JSON:
        typer.echo(report.model_dump_json(indent=2))
    else:
        print_report(report)
    apply_policy(report, "fail", 0.0)


@data.command()
def convert(
    source: Annotated[str, typer.Argument(help="File, glob, folder or dataset name to read")],
    target: Annotated[Path, typer.Argument(help="File to write: .jsonl .json .parquet")],
    to: Annotated[SchemaName, typer.Option(help="Kind of row to write")] = SchemaName.PROMPT,
    written_as: Annotated[
        RowFormat | None,
        typer.Option("--from", help="Whose rows they are; unset: this project's kinds"),
    ] = None,
    mapped: Mapped = None,
    env_class: Annotated[
        str | None, typer.Option(help="Environment of rows that name none")
    ] = None,
    prompt_key: Annotated[str, typer.Option(help="Column that holds the prompt")] = "prompt",
    force: Annotated[
        bool, typer.Option("--force", help="Write over the file where there is one")
    ] = False,
) -> None:
    """Convert between kinds of rows, from other systems' rows and from any dataset's columns.

    Every row that is written has passed its contract; if one is refused, nothing is written.
    """
    from rl_core.data.read.convert import Conversion, convert_file

    how = Conversion(to, written_as, _column_map(mapped), env_class, prompt_key)
    num_rows = convert_file(source, target, how, force=force)
    typer.echo(f"{num_rows} {to.value} rows written to {target}")


@data.command()
def announce(
    uri: Annotated[
        str,
        typer.Argument(
            help="File, folder or address (s3://..., https://...) where the new rows lie"
        ),
    ],
) -> None:
    """Tell the Prefect server about new data; deployments that wait for it start, and train if
    there is anything new."""
    import os

    from rl_core.services.announcing import announce as emit

    api = os.environ.get("PREFECT_API_URL", "")
    typer.echo(f"announced {emit(api, uri)} to {api}")


def print_report(report: "ValidationReport") -> None:
    """Print counts, and a table of reasons with the first example of each."""
    from flows.console import Console, Table

    typer.echo(f"{report.num_accepted} of {report.num_rows} rows are good; {report.explanation}")
    if not report.rejected_by_reason:
        return
    table = Table("Refused rows")
    for column in ("reason", "problems", "first at", "field", "value", "expected"):
        table.column(column, justify="right" if column == "problems" else "left")
    for reason, count in report.rejected_by_reason.items():
        first = next(example for example in report.examples if example.reason == reason)
        place = f"{Path(first.file).name}:{first.row}"
        table.row(reason, str(count), place, first.field, first.value, first.expected)
    Console().print(table)


def _column_map(assignments: list[str] | None) -> ColumnMap:
    """Raises: RecipeError on a mapping that cannot be read."""
    try:
        return ColumnMap.of_assignments(assignments or [])
    except ColumnMapError as error:
        raise RecipeError(f"--map: {error}") from error


def _cluster():
    from rl_core.distributed.cluster import configured_address

    if (address := configured_address()) is None:
        return None
    from rl_core.distributed.ray_data_validation import cluster_runner

    return cluster_runner(address)
