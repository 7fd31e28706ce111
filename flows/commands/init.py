"""The command `rl-train init`: a project of one's own to begin with."""

import shlex
from pathlib import Path
from typing import Annotated

import typer


def init(
    folder: Annotated[Path, typer.Argument(help="New folder, whose name becomes the project's")],
    starter: Annotated[
        str,
        typer.Option("--from", help="own, gsm8k, preference, tools, vision or diffusion"),
    ] = "own",
) -> None:
    """Write a small project that trains within minutes: rows, recipe, environment, reward and
    test."""
    from rl_core.runs.starters import write_starter

    files = write_starter(starter, folder)
    typer.echo(f"{folder}: {', '.join(str(file) for file in files)}")
    target = f"./{folder}" if str(folder).startswith("-") else str(folder)
    typer.echo(f"cd {shlex.quote(target)}")
    typer.echo("python -m unittest                          # the project's own test")
    typer.echo("rl-train validate --recipe recipe.yaml      # every row")
    typer.echo("rl-train run recipe.yaml                    # train")
