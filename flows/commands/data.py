"""The group `rl-train data`: work on row files outside any run."""

from pathlib import Path
from typing import Annotated

import typer

from rl_core.data.read.foreign_rows import RowFormat
from rl_core.errors import RecipeError
from schemas.rows.column_map import ColumnMap, ColumnMapError
from schemas.rows.contract import SchemaName

data = typer.Typer(help="Make and convert row files.", no_args_is_help=True)

Mapped = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        help="Make a column from another one: prompt=question, 'ground_truth=answer|after:####'",
    ),
]


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

    how = Conversion(to, written_as, column_map(mapped), env_class, prompt_key)
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

    from rl_core.services.addresses import Server, check_addresses
    from rl_core.services.announcing import announce as emit

    check_addresses(Server.PREFECT)
    api = os.environ.get("PREFECT_API_URL", "")
    typer.echo(f"announced {emit(api, uri)} to {api}")


def column_map(assignments: list[str] | None) -> ColumnMap:
    """Raises: RecipeError on a mapping that cannot be read."""
    try:
        return ColumnMap.of_assignments(assignments or [])
    except ColumnMapError as error:
        raise RecipeError(f"--map: {error}") from error
