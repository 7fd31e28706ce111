"""The commands `rl-train report` and `compare`, which show the results of runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_core.runtime.home import Home
from rl_core.services.addresses import Server, check_addresses

if TYPE_CHECKING:
    from rl_core.reporting.compare import Compared

RUN = "Name of the run's folder, its MLflow run id, or models:/NAME@champion"


def report(
    run: Annotated[str, typer.Argument(help=RUN)],
    to: Annotated[
        Path | None, typer.Option(help="File to write; unset: report.html in the run's folder")
    ] = None,
) -> None:
    """Write the report of a run, finished or not, as one self-contained HTML file."""
    from rl_core.reporting.report import write_report
    from rl_core.reporting.run_record import find_run

    check_addresses(Server.MLFLOW)
    home = Home.default()
    typer.echo(write_report(find_run(home, run), home, to))


def compare(
    runs: Annotated[list[str], typer.Argument(help=f"Two or more. {RUN}")],
    to: Annotated[Path | None, typer.Option(help="HTML file to write besides")] = None,
) -> None:
    """Compare runs: the scores of each, the confidence in the difference, and the differences of
    their recipes."""
    from rl_core.data.store.atomic import atomic_write_text
    from rl_core.reporting.compare import compare_page, compare_runs, differing_settings
    from rl_core.reporting.run_record import find_run

    check_addresses(Server.MLFLOW)
    home = Home.default()
    records = [find_run(home, run) for run in runs]
    _print(compare_runs(records), differing_settings(records))
    if to is not None:
        atomic_write_text(to, compare_page(records))
        typer.echo(to)


def _print(runs: "list[Compared]", settings: dict[str, list[str]]) -> None:
    from flows.console import Console, Table

    console = Console()
    reached = Table("Held-out accuracy; changes from the first run")
    for column in ("run", "before", "after", "change", "95 % interval", "steps", "version"):
        reached.column(column)
    for run in runs:
        reached.row(
            run.record.name,
            f"{run.before.accuracy:.3f}" if run.before else "",
            f"{run.after.accuracy:.3f}" if run.after else "",
            f"{run.change.mean:+.3f}" if run.change else "",
            f"{run.change.low:+.3f} to {run.change.high:+.3f}" if run.change else "",
            str(len(run.record.steps)),
            f"{run.record.model.name} v{run.record.model.version}" if run.record.model else "",
        )
    console.print(reached)
    differing = Table("Where the recipes differ")
    for column in ("key", *(run.record.name for run in runs)):
        differing.column(column)
    for key, values in settings.items():
        differing.row(key, *values)
    console.print(differing)
