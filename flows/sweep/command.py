"""The command `rl-train sweep`: one recipe with several settings."""

from typing import Annotated

import typer

from flows.exit_codes import continues_when_interrupted


def sweep(
    recipe: Annotated[str, typer.Argument(help="Name of a shipped recipe, or a .yaml path")],
    assignments: Annotated[
        list[str],
        typer.Argument(help="Settings with their values, e.g. algorithm.name=grpo,rloo seed=1,2"),
    ],
    profile: Annotated[
        str | None, typer.Option(help="Placement: cpu, one_gpu, one_node, many_nodes")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and check them; run nothing")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show Prefect's log and tracebacks")
    ] = False,
) -> None:
    """Train a recipe once for each combination of settings, one after the other, and compare the
    runs on one page.

    A run that its settings end does not end the others. The same command continues.
    """
    from flows.sweep.grid import combinations, varied
    from rl_core.runs.recipes import load_recipe

    load_recipe(recipe, (), profile)  # a fault of its own is not said of a setting
    runs = combinations(assignments)
    for run in runs:
        load_recipe(recipe, run, profile)
    if dry_run:
        for number, label in enumerate(varied(runs), 1):
            typer.echo(f"{number}\t{label}")
        return
    from flows.local_run import sweep_locally

    with continues_when_interrupted():
        sweep_locally(recipe, assignments, profile, debug=debug)
