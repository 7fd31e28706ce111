"""The commands `rl-train report` and `compare`, which show the results of runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.lists.listing import Entry, Json, print_list
from rl_core.runtime.home import Home
from rl_core.services.addresses import Server, check_addresses

if TYPE_CHECKING:
    from rl_core.reporting.compare import Compared

RUN = (
    "Name of the run's folder or the start of it, its recipe's name if it has one run, its MLflow "
    "run id, or models:/NAME@champion"
)


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
    as_json: Json = False,
) -> None:
    """Compare runs: the scores of each, the confidence in the difference, and the differences of
    their recipes."""
    from rl_core.data.store.atomic import atomic_write_text
    from rl_core.reporting.compare import compare_page, compare_runs, differing_settings
    from rl_core.reporting.run_record import find_run

    check_addresses(Server.MLFLOW)
    home = Home.default()
    records = [find_run(home, run) for run in runs]
    names = [record.name for record in records]
    _print(compare_runs(records), differing_settings(records), names, as_json)
    if to is not None:
        atomic_write_text(to, compare_page(records))
        typer.echo(to, err=as_json)


def _print(
    runs: "list[Compared]", settings: dict[str, list[str]], names: list[str], as_json: bool
) -> None:
    reached: list[Entry] = []
    for run in runs:
        model = run.record.model
        reached.append(
            {
                "run": run.record.name,
                "before": run.before.accuracy if run.before else None,
                "after": run.after.accuracy if run.after else None,
                "change": f"{run.change.mean:+.3f}" if run.change else None,
                "95 % interval": f"{run.change.low:+.3f} to {run.change.high:+.3f}"
                if run.change
                else None,
                "steps": len(run.record.steps),
                "version": f"{model.name} v{model.version}" if model else None,
            }
        )
    print_list(
        "Held-out accuracy; changes from the first run",
        ("run", "before", "after", "change", "95 % interval", "steps", "version"),
        reached,
        as_json,
    )
    if as_json:
        return
    differing: list[Entry] = []
    for key, values in settings.items():
        differing.append({"key": key, **dict(zip(names, values, strict=True))})
    print_list("Where the recipes differ", ("key", *names), differing, as_json)
