"""The `rl-train` command. Heavy packages are imported only by the commands that need them."""

import errno
import io
import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from flows.commands.data import data
from flows.commands.doctor import doctor
from flows.commands.envs import envs
from flows.commands.init import init
from flows.commands.launch import launch
from flows.commands.models import evaluate, export, lineage, promote, push, reproduce
from flows.commands.prep import make_fixture, prep
from flows.commands.reports import compare, report
from flows.commands.rollouts import rescore, rollouts
from flows.commands.serve import serve, serve_demo, serve_rewards, serve_search
from flows.commands.services import deploy, down, open_ui, status, up
from flows.commands.validate import validate
from flows.exit_codes import ExitCode, continues_when_interrupted
from flows.failed_server import failed_server
from flows.lists.commands import models, recipes, runs
from flows.lists.config_cli import config
from flows.prefect_settings import refused_setting
from flows.sweep.command import sweep
from rl_core.errors import (
    OF_A_DISK,
    ChainStopped,
    NodeLost,
    RewardError,
    StoppedByWatcher,
    Unreachable,
    UserError,
)
from rl_core.runtime.home import Home
from rl_core.runtime.secrets import redact

app = typer.Typer(
    help="RL post-training as Prefect flows.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(init)
app.command()(recipes)
app.command()(runs)
app.command()(models)
app.command()(validate)
app.command()(prep)
app.command()(serve)
app.command()(serve_search)
app.command()(serve_rewards)
app.command()(serve_demo)
app.command()(doctor)
app.command()(up)
app.command("open")(open_ui)
app.command()(status)
app.command()(down)
app.command()(deploy)
app.command()(lineage)
app.command()(promote)
app.command()(reproduce)
app.command("eval")(evaluate)
app.command()(export)
app.command()(push)
app.command()(sweep)
app.command()(report)
app.command()(compare)
app.command()(rollouts)
app.command()(rescore)
data.command()(make_fixture)
app.add_typer(data, name="data")
app.add_typer(envs, name="envs")
app.add_typer(launch, name="launch")
app.add_typer(config, name="config")

OF_A_PATH = (
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM),
    *(errno.EROFS, errno.ENOSPC, errno.EDQUOT),
)
"""Errors of the system that say that a path which the user gave, or its disk, cannot be used."""
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Dotted assignments, e.g. algorithm.clip_high=0.28")
]


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rl-train {version('rl-train')}")
        raise typer.Exit


@app.callback()
def _group(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version"),
    ] = False,
) -> None:
    """RL post-training as Prefect flows."""


@app.command()
def run(
    recipe: Annotated[
        str, typer.Argument(help="Name of a shipped recipe, or a .yaml path")
    ] = "text",
    overrides: Overrides = None,
    profile: Annotated[
        str | None, typer.Option(help="Placement: cpu, one_gpu, one_node, many_nodes")
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option("--fresh", help="Start anew, forgetting what this recipe and data reached"),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the resolved recipe and the plan; run nothing")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", "--verbose", help="Show Prefect's log and tracebacks")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print warnings, errors and the model alone")
    ] = False,
) -> None:
    """Run the flow rl-train in this process, continuing an earlier run of the same recipe and
    data."""
    if dry_run:
        from flows.chain_plan import print_plans

        print_plans(recipe, overrides or [], profile)
        return
    from flows.local_run import run_locally

    with continues_when_interrupted():
        receipt = run_locally(
            recipe, overrides or [], profile, fresh=fresh, debug=debug, quiet=quiet
        )
        if quiet:
            from flows.summary import result_lines  # not earlier: it imports much

            typer.echo("\n".join(result_lines(receipt)))


def main() -> None:
    """Entry point: an error that the user can fix ends with its message alone and exit code 2."""
    # A recipe may name a class in a module of the current folder, where Ray's workers look too.
    sys.path.append(os.getcwd())
    # A file's name need not be UTF-8, nor a terminal able to show a row's letters.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        Home.default().activate()
        app()
    except UserError as error:
        if _wants_traceback():
            raise
        _say_error(str(error))
        sys.exit(
            ExitCode.STOPPED
            if isinstance(error, StoppedByWatcher | ChainStopped)
            else ExitCode.USER_ERROR
        )
    except (Unreachable, NodeLost, RewardError) as error:
        if _wants_traceback():
            raise
        typer.echo(f"error: {redact(str(error))}; try again", err=True)
        sys.exit(ExitCode.MACHINE_ERROR)
    except ValueError as error:
        refused = refused_setting(error)
        if _wants_traceback() or refused is None:
            raise
        _say_error(refused)
        sys.exit(ExitCode.USER_ERROR)
    except OSError as error:
        of_a_path = error.errno in OF_A_PATH and error.filename is not None
        if _wants_traceback() or not (of_a_path or error.errno in OF_A_DISK):
            raise
        where = error.filename or "a file (--debug says which)"
        _say_error(f"{where!s:.200}: {os.strerror(error.errno or 0)}")
        sys.exit(ExitCode.USER_ERROR)
    except Exception as error:
        said = failed_server(error)
        if _wants_traceback() or said is None:
            raise
        # Prefect's own remarks about its logs end without a new line.
        typer.echo("", err=True)
        _say_error(said)
        sys.exit(ExitCode.MACHINE_ERROR)


def _wants_traceback() -> bool:
    return not {"--debug", "--verbose"}.isdisjoint(sys.argv)


def _say_error(message: str) -> None:
    from flows.console import visible

    typer.echo(f"error: {visible(redact(message))}", err=True)


if __name__ == "__main__":
    main()
