"""Lists that commands print: a table in a terminal, tab-separated lines for a program, or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from flows.console import Console, Table, visible

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table")]
"""The option of every command that prints a list."""
Entry = Mapping[str, object]
"""One line of a list: its values by the names of the columns; None is an empty cell."""


def print_list(title: str, columns: Sequence[str], entries: Sequence[Entry], as_json: bool) -> None:
    """Print entries.

    In a terminal that is a table; elsewhere a line of column names and a line for each entry, whose
    cells are separated by tabs. Args: columns: keys of the entries, in order.
    """
    if as_json:
        listed = [{column: entry.get(column) for column in columns} for entry in entries]
        typer.echo(json.dumps(listed, indent=2, ensure_ascii=False, default=str))
    elif sys.stdout.isatty():
        table = Table(title)
        for column in columns:
            table.column(column)
        for entry in entries:
            table.row(*(_cell(entry.get(column)) for column in columns))
        Console().print(table)
    else:
        typer.echo("\t".join(columns))
        for entry in entries:
            cells = [_cell(entry.get(column)) for column in columns]
            typer.echo("\t".join(visible(" ".join(cell.split())) for cell in cells))


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else str(value)
