"""Tables of training rows that repeat held-out rows or rows of a benchmark, for the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from schemas.receipts import ContaminationReport


def print_contamination(found: "ContaminationReport | None") -> None:
    """Print how many rows of each file repeat rows of another, and the first of them."""
    from flows.console import Console, Table

    if found is None:
        return
    if not found.num_rows:
        typer.echo("no training row repeats a row that the model is measured on")
        return
    does = {
        "report": "are trained on",
        "drop": "are left out of training",
        "fail": "end the run",
    }[found.policy]
    typer.echo(
        f"{found.num_rows} training rows repeat rows that the model is measured on; they {does}"
    )
    table = Table("Training rows that repeat others")
    for column in ("files", "rows", "row", "repeats", "how", "share", "passage in common"):
        table.column(column, justify="right" if column in ("rows", "share") else "left")
    for pair in found.pairs:
        what = "benchmark" if pair.benchmark else "held-out"
        files = f"{Path(pair.file).name}, {what} {Path(pair.other_file).name}"
        for index, one in enumerate(pair.first):
            head = ("", "") if index else (files, str(pair.count))
            rows = (str(one.row), str(one.other_row), one.kind.value, f"{one.share:.2f}")
            table.row(*head, *rows, one.passage)
    Console().print(table)
    typer.echo(f"all of these: {found.path}")
